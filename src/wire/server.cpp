#include "wire/server.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/kept.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/process.hpp"
#include "wire/key.hpp"
#include "wire/metrics.hpp"
#include "wire/peers.hpp"

namespace sidestep::wire {
namespace {

using Clock = std::chrono::steady_clock;

// Questions of clients that are answered at the same time.
constexpr std::size_t most_workers = 8;
constexpr std::size_t most_at_files = 64;  // as many, that wait for a file system
constexpr std::size_t most_questions = 65536;
constexpr std::size_t most_neighbours = 1024;

// Clients need descriptors too.
std::size_t newcomers_here() {
    return std::clamp<std::size_t>(driver::most_descriptors() / 4, 1, Server::most_newcomers);
}

Error wrong(std::string message) {
    return Error{ErrorCode::io_error, std::move(message), "node", {}};
}

}  // namespace

Server::Server(const Machine& machine, std::shared_ptr<const Engines> engines, ServerOptions options)
    : engines_(std::move(engines)),
      options_(std::move(options)),
      node_(new Node{machine,
                     options_.allowed,
                     options_.node,
                     nullptr,
                     {},
                     std::make_shared<Pieces>(machine.engine.machine().lookout),
                     {},
                     {},
                     std::make_shared<Counters>(),
                     engines_,
                     options_.teller,
                     std::make_shared<Notices>(options_.most_notices),
                     options_.rate > 0 ? std::make_shared<Pace>(options_.rate) : nullptr}),
      most_now_(newcomers_here()),
      workers_({most_workers, 1, most_questions, true}, "questions of clients"),
      files_({most_at_files, 1, most_questions, true}, "questions of clients about files"),
      reaching_({most_workers, 0, most_questions, true}, "questions that other nodes answer"),
      joining_({most_workers, 0, most_questions, true}, "sockets of clients") {
    node_->neighbours = std::make_shared<Peers>(
        engines_, options_.node, [key = options_.key]() -> Result<std::string> { return key; },
        most_neighbours);
}

Result<std::unique_ptr<Server>> Server::start(const Machine& machine, std::shared_ptr<const Engines> engines,
                                              ServerOptions options) {
    std::unique_ptr<Server> server(new Server(machine, std::move(engines), std::move(options)));
    SIDESTEP_TRY(server->node_->tls, driver::Tls::load());
    SIDESTEP_TRY(server->loop_, driver::EventLoop::create("the node"));
    server->node_->pieces->tell([node = server->node_.get()] { node->move_those_due(); });
    machine.engine.drive_in_background(server->node_->pieces);
    SIDESTEP_CHECK(server->listen());
    return server;
}

Result<void> Server::listen() {
    for (const HostPort& at : options_.listen) SIDESTEP_CHECK(listen_at(at, listeners_, addresses_));
    for (const driver::TcpListener& listener : listeners_) {
        SIDESTEP_TRY(const auto watch,
                     loop_->add(listener.number(), true, false,
                                [this, &listener](driver::EventLoop::Ready) { accept(listener); }));
        watches_.push_back(watch);
    }
    loop_->every(std::chrono::milliseconds(500), [this] { tick(); });
    if (node_->pace) loop_->every(Pace::period, [pace = node_->pace] { pace->wake(); });
    return {};
}

Server::~Server() {
    if (loop_) loop_->end();  // first: it lets clients in
    std::map<std::uint64_t, Client> clients;
    {
        std::lock_guard lock(mutex_);
        clients.swap(clients_);
    }
    const Error why{ErrorCode::cancelled, "the node has ended", "node", {}};
    // Answers that are still being made go nowhere then.
    for (auto& [number, client] : clients) {
        if (!client.channel) continue;
        client.channel->send(to_message(Envelope{Word::leave, 0, {}}));
        client.channel->close(why);
    }
    probes_.end();
    node_->neighbours->close();
    for (auto& [number, client] : clients) {
        client.served->session().give_up(why);
        client.served->session().link()->end(why);
    }
    joining_.wait();
    node_->move_those_due();  // nothing comes into other slots any more
    // Calls that hang have what they use: the node, and with it the machine.
    reaching_.end();
    files_.end();
    workers_.end();
    for (auto& [number, client] : clients) client.served->end();
    node_->pieces->stop();
    // A device may still write to what hangs.
    std::lock_guard lock(node_->mutex);
    for (auto& slots : node_->slots)
        if (!slots->idle()) base::keep(std::move(slots));
}

void Server::accept(const driver::TcpListener& listener) {
    auto accepted = listener.accept();
    // The descriptors are at an end. It is called again at once.
    if (!accepted && drop_stranger()) return;
    if (!accepted) {
        // It would be called again at once. tick() has it listen again.
        for (const auto watch : watches_) loop_->change(watch, false, false);
        if (!std::exchange(full_, true))
            base::log(base::LogLevel::warn,
                      fmt::format("clients wait outside: {}", accepted.error().message));
        return;
    }
    if (!*accepted) return;
    if (strangers() >= most_now_) drop_stranger();
    auto newcomer = std::make_unique<Newcomer>(Newcomer{std::move(**accepted), {}, Clock::now()});
    if (const auto from = newcomer->socket.peer()) newcomer->from = from->to_string();
    const std::uint64_t number = next_++;
    auto watched = loop_->add(newcomer->socket.number(), true, false,
                              [this, number](driver::EventLoop::Ready) { look_at(number); });
    if (!watched) return;
    newcomer->watch = *watched;
    newcomers_.emplace(number, std::move(newcomer));
}

// The first byte of TLS is 22, that of a data socket a letter.
void Server::look_at(std::uint64_t number) {
    const auto found = newcomers_.find(number);
    if (found == newcomers_.end()) return;
    Newcomer& newcomer = *found->second;
    const std::size_t wanted = newcomer.nonce.empty() ? data_hello_bytes : code_bytes;
    std::array<char, data_hello_bytes> bytes;
    const auto came = newcomer.socket.receive(bytes.data(), wanted - newcomer.came.size());
    if (came && !*came) return;
    if (!came || **came == 0) {
        node_->counters->refused(Refusal::other);
        return drop(number);
    }
    newcomer.came.append(bytes.data(), **came);
    if (newcomer.nonce.empty() && newcomer.came.front() != data_magic.front()) return enter_client(number);
    if (newcomer.came.size() < wanted) return;
    if (newcomer.nonce.empty()) {
        if (auto answered = answer_data(newcomer); !answered) {
            node_->counters->refused(Refusal::data_socket);
            base::log(base::LogLevel::warn,
                      fmt::format("{} was turned away: {}", newcomer.from, answered.error().message));
            drop(number);
        }
        return;
    }
    enter_data(number);
}

void Server::drop(std::uint64_t number) {
    const auto found = newcomers_.find(number);
    if (found == newcomers_.end()) return;
    loop_->remove(found->second->watch);
    newcomers_.erase(found);
}

std::size_t Server::strangers() {
    std::erase_if(unknown_, [](const auto& one) {
        const auto channel = one.second.lock();
        return !channel || channel->established();
    });
    return newcomers_.size() + unknown_.size();
}

bool Server::drop_stranger() {
    if (strangers() == 0) return false;
    if (newcomers_.empty() || (!unknown_.empty() && unknown_.begin()->first < newcomers_.begin()->first))
        return drop_silent_client();
    node_->counters->refused(Refusal::full);
    drop(newcomers_.begin()->first);
    return true;
}

bool Server::drop_silent_client() {
    if (strangers() == newcomers_.size()) return false;
    if (const auto channel = unknown_.begin()->second.lock())
        channel->close(Error{ErrorCode::out_of_memory, "others came before it showed its key", "node", {}});
    unknown_.erase(unknown_.begin());
    return true;
}

void Server::enter_client(std::uint64_t number) {
    const std::unique_ptr<Newcomer> newcomer = std::move(newcomers_.at(number));
    newcomers_.erase(number);
    loop_->remove(newcomer->watch);
    auto tls = node_->tls->session(driver::Tls::Role::server, options_.key);
    auto key = node_->tls->random(key_bytes);
    if (!tls || !key) return;
    const auto served = std::make_shared<Served>(node_, number, std::move(*key), newcomer->from);
    // Which one it will be follows from its greeting.
    served->session().use(engines_->find(engines_->names().front())->link(served->shared_session()));
    const std::size_t here = clients();
    std::lock_guard lock(mutex_);
    // One that was lost has a place still, and has to be let in before it can say who it is.
    const bool full = here >= options_.most_clients || clients_.size() >= 2 * options_.most_clients;
    if (full && !drop_silent_client()) {
        node_->counters->refused(Refusal::full);
        base::log(base::LogLevel::warn,
                  fmt::format("{} was turned away: {} clients are here", newcomer->from, here));
        return;
    }
    const auto visit = std::make_shared<Visit>();
    visit->client = number;
    Channel::Handlers handlers;
    handlers.message = [this, visit](const std::string& message) { heard(visit, message); };
    handlers.ended = [this, visit](const Error& why) { gone(visit, why); };
    auto channel = Channel::start(*loop_, std::move(newcomer->socket), std::move(*tls), newcomer->from,
                                  std::move(handlers), newcomer->came);
    if (!channel) return;
    unknown_.emplace(number, *channel);
    served->talk_over(*channel);
    clients_.insert_or_assign(number, Client{served, std::move(*channel), visit});
}

// Its hello has come.
Result<void> Server::answer_data(Newcomer& newcomer) {
    SIDESTEP_TRY(const DataHello hello, parse_data_hello(newcomer.came));
    const auto served = find(hello.session);
    if (!served) return wrong("it belongs to no client that is here");
    const DataKind link = served->encrypted() ? DataKind::encrypted_link : DataKind::link;
    if (hello.kind != link && hello.kind != DataKind::probe)
        return wrong("it is encrypted, or not, as its session is not");
    SIDESTEP_TRY(std::string nonce, node_->tls->random(nonce_bytes));
    SIDESTEP_TRY(const std::string code, server_code(*node_->tls, served->key(), hello, nonce));
    SIDESTEP_TRY(newcomer.expected, client_code(*node_->tls, served->key(), hello, nonce));
    SIDESTEP_TRY(newcomer.keys,
                 data_keys(*node_->tls, served->key(), hello, nonce, driver::Tls::Role::server));
    newcomer.session = hello.session;
    newcomer.kind = hello.kind;
    newcomer.nonce = nonce;
    newcomer.came.clear();
    const std::string answer = nonce + code;
    const driver::TcpSocket::Part part{answer.data(), answer.size()};
    SIDESTEP_TRY(const Bytes gone, newcomer.socket.send({&part, 1}));
    if (gone < answer.size()) return wrong("it does not take what is sent to it");
    return {};
}

// Its code has come.
void Server::enter_data(std::uint64_t number) {
    const std::shared_ptr<Newcomer> newcomer = std::move(newcomers_.at(number));
    newcomers_.erase(number);
    loop_->remove(newcomer->watch);
    const auto served = find(newcomer->session);
    if (!served || !driver::Tls::equal(newcomer->came, newcomer->expected)) {
        node_->counters->refused(Refusal::data_socket);
        base::log(base::LogLevel::warn,
                  fmt::format("{} was turned away: it does not have the key of its session", newcomer->from));
        return;
    }
    if (newcomer->kind == DataKind::probe) return enter_probe(*newcomer);
    // What the engine does for it may take any time. By then the client may go on over another link.
    const auto join = [newcomer, link = served->session().link()] {
        if (link->sockets() >= backend::most_sockets) return;
        if (auto added = link->add(std::move(newcomer->socket).take().release(), newcomer->keys); !added)
            base::log(base::LogLevel::warn, added.error().to_string());
    };
    if (auto begun = joining_.add(join); !begun) base::log(base::LogLevel::warn, begun.error().to_string());
}

void Server::enter_probe(Newcomer& newcomer) {
    const auto added = probes_.add(newcomer.session, std::move(newcomer.socket));
    if (added) return;
    node_->counters->refused(Refusal::probe);
    base::log(base::LogLevel::warn,
              fmt::format("a probe of {} was turned away: {}", newcomer.from, added.error().message));
}

void Server::tick() {
    if (std::exchange(full_, false))
        for (const auto watch : watches_) loop_->change(watch, true, false);
    const auto now = Clock::now();
    std::vector<std::uint64_t> slow;
    for (const auto& [number, newcomer] : newcomers_)
        if (now - newcomer->since > patience) slow.push_back(number);
    for (const std::uint64_t number : slow) {
        node_->counters->refused(Refusal::silent);
        drop(number);
    }

    look_after_clients();
    node_->neighbours->close_idle(Peers::idle_limit);

    std::vector<std::shared_ptr<Slots>> unused;
    std::lock_guard lock(node_->mutex);
    std::erase_if(node_->slots, [&](std::shared_ptr<Slots>& slots) {
        const bool last = slots.use_count() == 1 && slots->idle();
        if (last) unused.push_back(std::move(slots));
        return last;
    });
}

std::string Server::metrics() const {
    return metrics_text(*node_->counters, {options_.node, clients(), probes_.count(), received(), sent()});
}

}  // namespace sidestep::wire
