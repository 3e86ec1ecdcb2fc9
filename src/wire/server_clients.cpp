// The clients of a node: their questions, and what becomes of them when a connection is lost.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "wire/checked_link.hpp"
#include "wire/server.hpp"

namespace sidestep::wire {

namespace {

// The answer may have to wait for a file system.
bool is_about_files(Word word) {
    return word == Word::describe || word == Word::attach || word == Word::commit || word == Word::list ||
           word == Word::detach;
}

}  // namespace

std::optional<Server::Client> Server::find(const std::shared_ptr<Visit>& visit) const {
    std::lock_guard lock(mutex_);
    const auto found = clients_.find(visit->client);
    if (found == clients_.end() || found->second.visit != visit || !found->second.channel)
        return std::nullopt;
    return found->second;
}

std::shared_ptr<Served> Server::find(std::uint64_t client) const {
    std::lock_guard lock(mutex_);
    const auto found = clients_.find(client);
    if (found == clients_.end() || !found->second.channel) return nullptr;
    return found->second.channel->established() ? found->second.served : nullptr;
}

// What may block is done by others, who hold what they use themselves: this server may go before they are through.
void Server::heard(const std::shared_ptr<Visit>& visit, const std::string& message) {
    const auto client = find(visit);
    if (!client) return;
    auto question = parse_envelope(message);
    if (!question) return client->channel->close(question.error());
    if (question->word == Word::leave) {
        {
            std::lock_guard lock(mutex_);
            if (const auto found = clients_.find(visit->client); found != clients_.end())
                found->second.leaves = true;
        }
        return client->channel->close(Error{ErrorCode::cancelled, "it has left", "node", {}});
    }
    // Whoever has something here already cannot become the client that was here before: nobody would let go of it.
    if (std::exchange(visit->greeted, true) == (question->word == Word::hello))
        return client->channel->close(Error{
            ErrorCode::io_error, "a greeting is the first that a client says, and comes once", "node", {}});
    base::Workers& by = question->word == Word::reach    ? reaching_
                        : is_about_files(question->word) ? files_
                                                         : workers_;
    base::Workers::Task task;
    if (question->word == Word::hello)
        task = welcome(visit, *client, *question);
    else
        task = [served = client->served, question = std::move(*question),
                came = std::chrono::steady_clock::now()] {
            // Its client may have come again meanwhile.
            if (auto answer = served->answer(question, 0, came)) served->send(*answer);
        };
    if (!by.add(std::move(task)))
        client->channel->close(
            Error{ErrorCode::io_error, "the node has more questions than it can answer", "node", {}});
}

backend::NetworkEngine* Server::engine_for(const Hello& theirs) const {
    return engines_->find(common_engine(theirs.engines, node_->engines()));
}

base::Workers::Task Server::welcome(const std::shared_ptr<Visit>& visit, const Client& client,
                                    const Envelope& question) {
    const auto theirs = parse_hello(question.body);
    auto* const engine = theirs ? engine_for(*theirs) : nullptr;
    if (theirs && theirs->session != 0 && engine != nullptr)
        return welcome_again(visit, client, *theirs, question, *engine);
    // Without a common one the client sees by the names that there is none.
    if (engine != nullptr)
        client.served->use_engine(*engine, theirs->checked, theirs->encrypted || engines_->encrypted());
    return [served = client.served, question, came = std::chrono::steady_clock::now(),
            sockets = engine != nullptr ? engine->useful_sockets() : 0] {
        if (auto answer = served->answer(question, sockets, came)) served->send(*answer);
    };
}

// The visit is from now on that of the client who was here before, if the session that the greeting names is its own.
base::Workers::Task Server::welcome_again(const std::shared_ptr<Visit>& visit, const Client& fresh,
                                          const Hello& theirs, const Envelope& question,
                                          backend::NetworkEngine& engine) {
    std::shared_ptr<Channel> before;
    std::shared_ptr<Served> served;
    {
        std::lock_guard lock(mutex_);
        const auto known = clients_.find(theirs.session);
        const auto own = clients_.find(visit->client);  // none: it has gone
        if (known != clients_.end() && own != clients_.end() && known != own &&
            driver::Tls::equal(known->second.served->key(), theirs.key)) {
            take_off(own);
            served = known->second.served;
            before = std::exchange(known->second.channel, fresh.channel);
            known->second.visit = visit;
            visit->client = theirs.session;
        }
    }
    if (before) before->close(Error{ErrorCode::io_error, "it has connected anew", "node", {}});
    if (!served)
        return [channel = fresh.channel, number = question.number, counters = node_->counters] {
            const Result<std::string> gone =
                Error{ErrorCode::not_found, "what this client had here is gone", "node", {}};
            counters->answered(Word::hello, gone, {});
            channel->send(to_message(Envelope{Word::answer, number, to_answer(gone)}));
        };
    return served->come_again(fresh.channel, make_link(engine, served->shared_session(), theirs.checked),
                              question, engine.useful_sockets());
}

void Server::gone(const std::shared_ptr<Visit>& visit, const Error& why) {
    Client left;
    bool established = false;
    bool stays = false;
    {
        std::lock_guard lock(mutex_);
        const auto found = clients_.find(visit->client);
        if (found == clients_.end() || found->second.visit != visit) return;
        Client& client = found->second;
        established = client.channel->established();
        stays = established && !client.leaves && !client.served->session().end();
        client.channel.reset();
        client.lost = std::chrono::steady_clock::now();
        left = stays ? client : take_off(found);
    }
    probes_.drop(visit->client);
    if (!established)
        node_->counters->refused(why.code == ErrorCode::permission_denied ? Refusal::key
                                 : why.code == ErrorCode::timed_out       ? Refusal::silent
                                 : why.code == ErrorCode::out_of_memory   ? Refusal::full
                                                                          : Refusal::other);
    if (!stays) return forget(std::move(left), why);
    base::log(base::LogLevel::info, fmt::format("{} was lost: {}", left.served->from(), why.message));
    left.served->session().link()->close(why);
}

// At once, so that sums do not fall meanwhile.
Server::Client Server::take_off(std::map<std::uint64_t, Client>::iterator one) {
    received_before_ += one->second.served->session().received();
    sent_before_ += one->second.served->session().sent();
    return std::move(clients_.extract(one).mapped());
}

// It is on the list no more.
void Server::forget(Client client, const Error& why) {
    base::log(base::LogLevel::info, fmt::format("{} is gone: {}", client.served->from(), why.message));
    client.served->session().give_up(why);
    // To let go of files and memory may take long.
    if (!files_.add([served = client.served] { served->end(); })) client.served->end();
}

// A link that is lost alone takes its channel along, so that the client hears of it.
void Server::look_after_clients() {
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::pair<std::shared_ptr<Channel>, Error>> dead;
    std::vector<Client> left;
    {
        std::lock_guard lock(mutex_);
        for (auto next = clients_.begin(); next != clients_.end();) {
            const auto one = next++;
            Client& client = one->second;
            const Session& session = client.served->session();
            if (!client.channel && now - client.lost > kept_for) {
                left.push_back(take_off(one));
            } else if (auto end = client.channel ? session.end() : std::nullopt) {
                dead.emplace_back(client.channel, std::move(*end));
            } else if (client.channel && session.waits_for_link() && !client.served->comes_again()) {
                dead.emplace_back(client.channel,
                                  Error{ErrorCode::io_error, "its link was lost", "node", {}});
            }
        }
    }
    for (const auto& [channel, why] : dead) channel->close(why);
    for (Client& client : left)
        forget(std::move(client), Error{ErrorCode::timed_out, "it did not come again", "node", {}});
}

std::size_t Server::clients() const {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(
        clients_.begin(), clients_.end(), [](const auto& one) { return one.second.channel != nullptr; }));
}

Bytes Server::received() const {
    std::lock_guard lock(mutex_);
    Bytes bytes = received_before_;
    for (const auto& [number, client] : clients_) bytes += client.served->session().received();
    return bytes;
}

Bytes Server::sent() const {
    std::lock_guard lock(mutex_);
    Bytes bytes = sent_before_;
    for (const auto& [number, client] : clients_) bytes += client.served->session().sent();
    return bytes;
}

}  // namespace sidestep::wire
