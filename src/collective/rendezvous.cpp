#include "collective/rendezvous.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "protocol/collective_task.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;
using Time = driver::LocalSocket::Time;

// While ranks are missing, sockets are looked for this often.
constexpr int look_pause_ms = 1;
// What one contact may say before the others have come.
constexpr std::size_t max_early = 8;
// A waiting thread checks this often whether it was told to stop.
constexpr std::chrono::milliseconds stop_pause{50};
// How long the one that has the rank already may take to hear of another one.
constexpr std::chrono::milliseconds root_told_within{500};
// A rank that cannot take part stays this long, so that those who come later hear why.
constexpr std::chrono::seconds staying_limit{2};

Error hung_up(const std::string& who) {
    return Error{
        ErrorCode::io_error, fmt::format("{} ended while the group was being joined", who), "group", {}};
}

Error told_to_stop(const std::string& me, const std::string& missing) {
    return Error{ErrorCode::cancelled,
                 fmt::format("{} was told to stop while it waited for {}", me, missing),
                 "group",
                 {}};
}

// Some process listens as this rank: it hears of this one, and tells all others.
Error taken(const std::string& path, const Hello& mine, Time until) {
    auto other = driver::LocalSocket::connect(path, std::min(until, Clock::now() + root_told_within));
    std::string who = "a process that is alive";
    if (other && other->send(to_bytes(Message{.word = Word::hello, .blob = to_bytes(mine)}))) {
        if (const auto peer = other->peer(); peer) who = fmt::format("process {}", peer->process);
        (void)other->receive(longest_message, std::min(until, Clock::now() + root_told_within));
    }
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank {} of this group is {} already", mine.rank, who), path,
                 "give every process a rank of its own, and every group a new id"};
}

std::string group_name(const GroupId& id) {
    return fmt::format("group-{}.", id.to_string());
}

bool is_end(const Message& message) {
    return message.word == Word::refuse || message.word == Word::failed;
}

// What `who` ends joining for. It is passed on to others, so that it has to say whose word it is.
Error error_in(const Message& end, const std::string& who) {
    const bool says_who = end.text.find("rank ") != std::string::npos;
    return {end.code == ErrorCode{0} ? ErrorCode::io_error : end.code,
            says_who ? end.text : fmt::format("{} cannot take part: {}", who, end.text),
            who,
            {}};
}

// Who is at the other end before it has said so.
std::string caller(const driver::LocalSocket& socket, std::optional<std::uint32_t> called) {
    const auto peer = socket.peer();
    std::string who = peer && peer->process != 0 ? fmt::format("process {}", peer->process) : "a process";
    return called ? fmt::format("rank {} ({})", *called, who) : who;
}

// What an error says to the others.
Message refusal(const Error& error) {
    return Message{.word = Word::refuse, .code = error.code, .text = error.message};
}

}  // namespace

std::string group_path(const peer::Folder& folder, const GroupId& id) {
    return folder.socket_of(group_name(id));
}

std::string name_of(std::uint32_t rank, std::uint32_t process, const std::string& place) {
    return fmt::format("rank {} (process {}, {})", rank, process, place);
}

std::string Contact::who() const {
    return name_of(hello.rank, static_cast<std::uint32_t>(process), hello.place);
}

Error failure_of(const std::string& who, const std::string& why) {
    return {ErrorCode::io_error, fmt::format("{} cannot take part: {}", who, why), "group", {}};
}

Error Contact::nonsense(const Error& what) const {
    return {what.code, fmt::format("{} sent what cannot be read: {}", who(), what.message), "group",
            what.hint};
}

Result<void> Contact::listen() {
    while (!closed && early.size() < max_early) {
        auto received = socket.receive(longest_message, Clock::now());
        if (!received && received.error().code == ErrorCode::timed_out) return {};
        if (!received && received.error().code == ErrorCode::out_of_memory) return received.error();
        if (!received && received.error().code != ErrorCode::not_found) {
            failed = true;
            return nonsense(received.error());
        }
        if (!received) {
            closed = true;
            failed = !ready;
            return failed ? Result<void>(hung_up(who())) : Result<void>();
        }
        const auto message = parse_message(received->bytes);
        failed = !message || (!ready && is_end(*message));
        if (failed) return message ? error_in(*message, who()) : nonsense(message.error());
        if (message->word == Word::ready || message->word == Word::arena)
            ready = message->word == Word::ready;
        early.push_back(std::move(*received));
    }
    return {};
}

Result<void> Contact::send(std::string_view bytes, int with) {
    auto sent = socket.send(bytes, with);
    if (sent) return sent;
    SIDESTEP_CHECK(listen());
    failed = closed;
    if (!closed) return sent;
    // What it said after it was ready was kept.
    const auto last = early.empty() ? Result<Message>(hung_up(who())) : parse_message(early.back().bytes);
    return last && is_end(*last) ? error_in(*last, who()) : hung_up(who());
}

Result<driver::LocalMessage> next_message(Contacts& contacts, std::uint32_t rank, Time until,
                                          const std::stop_token& stop, const std::string& me) {
    Contact& contact = *contacts[rank];
    SIDESTEP_CHECK(contact.listen());
    while (contact.early.empty()) {
        contact.failed = contact.closed;
        if (contact.closed) return hung_up(contact.who());
        if (stop.stop_requested()) return told_to_stop(me, contact.who());
        if (Clock::now() >= until)
            return Error{ErrorCode::timed_out, fmt::format("{} came, but then said nothing", contact.who()),
                         "group", "it hangs, or is stopped"};
        std::vector<pollfd> entries;
        for (const auto& other : contacts)
            if (other && !other->closed && other->early.size() < max_early)
                entries.push_back({other->socket.number(), POLLIN, 0});
        const auto pause = std::min<Clock::duration>(until - Clock::now(), stop_pause);
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(pause).count();
        ::poll(entries.data(), entries.size(), static_cast<int>(std::max<long>(left, 0)));
        for (auto& other : contacts)
            if (other) SIDESTEP_CHECK(other->listen());
    }
    driver::LocalMessage message = std::move(contact.early.front());
    contact.early.pop_front();
    SIDESTEP_TRY(const Message parsed, parse_message(message.bytes));
    contact.failed = is_end(parsed);
    if (contact.failed) return error_in(parsed, contact.who());
    return message;
}

Result<Rendezvous> Rendezvous::open(const peer::Folder& folder, const GroupId& id, const Hello& mine,
                                    Time until) {
    const std::string prefix = group_path(folder, id);
    const std::string name = fmt::format("{}{}", group_name(id), mine.rank);
    const std::string path = folder.socket_of(name);
    SIDESTEP_TRY(auto listener, folder.take(name));
    if (!listener) return taken(path, mine, until);
    return Rendezvous(std::move(*listener), prefix, path);
}

Rendezvous::Rendezvous(Rendezvous&& other) noexcept
    : listener_(std::move(other.listener_)),
      prefix_(std::move(other.prefix_)),
      path_(std::move(other.path_)) {
    other.path_.clear();
}

Rendezvous::~Rendezvous() {
    if (!path_.empty()) ::unlink(path_.c_str());
}

// One call of meet(): who has come, and who still has to say who it is.
struct Rendezvous::Meeting {
    const Rendezvous& at;
    const Hello& mine;
    const int descriptor;
    Contacts contacts;
    std::vector<std::optional<driver::LocalSocket>> lower;  // connected to, but silent so far
    std::vector<driver::LocalSocket> unknown;               // connected to this rank, and silent so far
    bool own_failure = false;                               // the error is this rank's alone
    bool found_here = false;                                // and those who come later have to be told

    Meeting(const Rendezvous& rendezvous, const Hello& own, int with)
        : at(rendezvous), mine(own), descriptor(with), contacts(own.ranks), lower(own.ranks) {}

    std::string own_hello() const { return to_bytes(Message{.word = Word::hello, .blob = to_bytes(mine)}); }

    std::string socket_of(std::uint32_t rank) const { return fmt::format("{}{}", at.prefix_, rank); }

    std::vector<std::uint32_t> missing() const {
        std::vector<std::uint32_t> ranks;
        for (std::uint32_t rank = 0; rank < mine.ranks; ++rank)
            if (rank != mine.rank && !contacts[rank]) ranks.push_back(rank);
        return ranks;
    }

    Error fails(const Error& error) {
        own_failure = true;
        return error;
    }

    Result<void> connect() {
        for (std::uint32_t rank = 0; rank < mine.rank; ++rank) {
            if (contacts[rank] || lower[rank]) continue;
            auto socket = driver::LocalSocket::connect(socket_of(rank), Clock::now());
            if (!socket &&
                (socket.error().code == ErrorCode::not_found || socket.error().code == ErrorCode::timed_out))
                continue;
            if (!socket) return fails(socket.error());
            // One that has gone meanwhile is looked for again.
            if (socket->send(own_hello(), descriptor)) lower[rank] = std::move(*socket);
        }
        return {};
    }

    // A rank says at once who it is: of many that are silent the oldest makes way.
    Result<void> accept() {
        constexpr std::size_t max_silent = 4 * protocol::max_ranks;
        for (std::size_t taken = 0; taken < max_silent; ++taken) {
            auto socket = at.listener_.accept();
            if (!socket) return fails(socket.error());
            if (!*socket) break;
            if (unknown.size() == max_silent) unknown.erase(unknown.begin());
            unknown.push_back(std::move(**socket));
        }
        return {};
    }

    // Of this version or another one. Whatever else comes to the door concerns no rank.
    static bool is_of_a_rank(const driver::LocalSocket& socket, const std::string& bytes) {
        const auto peer = socket.peer();
        if (peer && peer->user != ::geteuid()) return false;
        const auto message = parse_message(bytes);
        if (!message) return message.error().code == ErrorCode::unsupported;
        return message->word == Word::refuse ||
               (message->word == Word::hello && parse_hello(message->blob).ok());
    }

    Result<void> check(const Hello& theirs, const std::string& who) const {
        if (theirs.ranks != mine.ranks)
            return Error{ErrorCode::invalid_argument,
                         fmt::format("{} says that the group has {} ranks, rank {} (process {}) says {}", who,
                                     theirs.ranks, mine.rank, mine.process, mine.ranks),
                         "group", "give all ranks the same number"};
        if (theirs.rank == mine.rank || contacts[theirs.rank])
            return Error{ErrorCode::invalid_argument,
                         fmt::format("two processes are rank {}: {} and {}", theirs.rank,
                                     theirs.rank == mine.rank ? static_cast<int>(mine.process)
                                                              : contacts[theirs.rank]->process,
                                     theirs.process),
                         "group", "give every process a rank of its own, and every group a new id"};
        return {};
    }

    // The first message of a connection: to the rank `called`, or of whoever has connected.
    Result<void> greet(driver::LocalSocket socket, std::optional<std::uint32_t> called) {
        auto received = socket.receive(longest_message, Clock::now());
        // It hung up again: that rank comes back, or is reported missing in the end.
        if (!received && received.error().code != ErrorCode::out_of_memory) return {};
        if (!received) {
            if (called) lower[*called] = std::move(socket);
            return fails(received.error());
        }
        if (!called && !is_of_a_rank(socket, received->bytes)) {
            base::log(base::LogLevel::debug, fmt::format("a connection to {} is no rank's", at.path_));
            return {};
        }
        Contact contact;
        contact.socket = std::move(socket);
        auto heard = read_hello(contact, *received, called);
        if (heard) heard = check(contact.hello, contact.who());
        if (heard && !called && !contact.socket.send(own_hello(), descriptor)) {
            // It may have said why before it went.
            const auto last = contact.listen();
            return last || contact.closed ? Result<void>() : last;
        }
        if (!heard) {
            (void)contact.socket.send(to_bytes(refusal(heard.error())));
            found_here = !contact.failed;
            return heard.error();
        }
        // Of those the address is taken for granted: the kernel has to say so too.
        const auto peer = contact.socket.peer();
        contact.same_process = contact.hello.program == mine.program &&
                               contact.hello.process == mine.process && peer && peer->process == ::getpid();
        contact.descriptor = std::move(received->descriptor);
        const std::uint32_t rank = contact.hello.rank;
        contacts[rank] = std::move(contact);
        return {};
    }

    // `called`: the rank that it has to be.
    static Result<void> read_hello(Contact& contact, const driver::LocalMessage& received,
                                   std::optional<std::uint32_t> called) {
        const std::string who = caller(contact.socket, called);
        const auto wrong = [&](const Error& what) {
            return Error{what.code, fmt::format("{}: {}", who, what.message), "group", what.hint};
        };
        const auto message = parse_message(received.bytes);
        if (!message) return wrong(message.error());
        contact.failed = message->word == Word::refuse;
        if (contact.failed) return error_in(*message, who);
        auto hello = parse_hello(message->blob);
        if (hello && (message->word != Word::hello || (called && hello->rank != *called)))
            hello = Error{ErrorCode::io_error, "another rank did not say who it is", "group", {}};
        if (!hello) return wrong(hello.error());
        contact.hello = std::move(*hello);
        contact.process = static_cast<int>(contact.hello.process);
        if (const auto peer = contact.socket.peer(); peer) {
            if (peer->user != ::geteuid())
                return wrong({ErrorCode::permission_denied, "a process of another user", {}, {}});
            if (peer->process != 0) contact.process = peer->process;
        }
        return {};
    }

    // A message from a known rank is kept for later, unless it is the end.
    Result<void> listen_to(Contact& contact) {
        auto heard = contact.listen();
        if (!heard && !contact.failed) return fails(heard.error());
        return heard;
    }

    Result<void> wait_and_read(Time until) {
        std::vector<pollfd> entries{{at.listener_.number(), POLLIN, 0}};
        for (const auto& socket : unknown) entries.push_back({socket.number(), POLLIN, 0});
        const std::size_t known = entries.size();
        for (std::uint32_t rank = 0; rank < mine.ranks; ++rank) {
            if (lower[rank])
                entries.push_back({lower[rank]->number(), POLLIN, 0});
            else if (contacts[rank] && contacts[rank]->early.size() < max_early)
                entries.push_back({contacts[rank]->socket.number(), POLLIN, 0});
            else
                entries.push_back({-1, 0, 0});
        }
        const bool looking =
            std::any_of(contacts.begin(), contacts.begin() + mine.rank, [](const auto& c) { return !c; });
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
        const int pause =
            static_cast<int>(std::clamp<long>(left, 0, looking ? look_pause_ms : stop_pause.count()));
        ::poll(entries.data(), entries.size(), pause);

        auto greeted = Result<void>();
        std::vector<driver::LocalSocket> silent = std::exchange(unknown, {});
        for (std::size_t i = 0; i < silent.size(); ++i)
            if (greeted && entries[1 + i].revents != 0)
                greeted = greet(std::move(silent[i]), {});
            else
                unknown.push_back(std::move(silent[i]));
        SIDESTEP_CHECK(greeted);
        for (std::uint32_t rank = 0; rank < mine.ranks; ++rank) {
            if (entries[known + rank].revents == 0) continue;
            if (!lower[rank]) {
                SIDESTEP_CHECK(listen_to(*contacts[rank]));
                continue;
            }
            driver::LocalSocket socket = std::move(*lower[rank]);
            lower[rank].reset();
            SIDESTEP_CHECK(greet(std::move(socket), rank));
        }
        // Only now: even without a waiting client it takes a descriptor for a moment.
        return entries[0].revents != 0 ? accept() : Result<void>();
    }

    std::string who_is_missing() const { return fmt::format("rank {}", fmt::join(missing(), ", rank ")); }

    Error late() const {
        return Error{
            ErrorCode::timed_out, fmt::format("{} did not come", who_is_missing()), at.prefix_,
            "do all processes run, as one user, with the same id and the same SIDESTEP_PEER_FOLDER?"};
    }

    // Who has come.
    void tell_all(const Error& error) {
        const std::string bytes = to_bytes(refusal(error));
        for (const auto& contact : contacts)
            if (contact) (void)contact->socket.send(bytes);
        for (const auto& socket : lower)
            if (socket) (void)socket->send(bytes);
        for (const auto& socket : unknown) (void)socket.send(bytes);
        while (const auto socket = at.listener_.accept()) {
            if (!*socket) return;
            (void)(*socket)->send(bytes);
        }
    }

    std::string me() const { return name_of(mine.rank, mine.process, mine.place); }

    // All ranks, also those that come later.
    void refuse(const Error& why, Time until, const std::stop_token& stop) {
        const std::string bytes = to_bytes(refusal(why));
        std::vector<bool> told(mine.ranks);
        told[mine.rank] = true;
        for (std::uint32_t rank = 0; rank < mine.ranks; ++rank) {
            if (contacts[rank]) (void)contacts[rank]->socket.send(bytes);
            told[rank] = told[rank] || contacts[rank] || (lower[rank] && lower[rank]->send(bytes));
            // It may be descriptors that lack.
            contacts[rank].reset();
            lower[rank].reset();
        }
        until = std::min(until, Clock::now() + staying_limit);
        for (;;) {
            tell_lower(bytes, told);
            (void)accept();
            tell_unknown(bytes, told);
            if (std::find(told.begin(), told.end(), false) == told.end()) return;
            if (Clock::now() >= until || stop.stop_requested()) return;
            std::this_thread::sleep_for(std::chrono::milliseconds(look_pause_ms));
        }
    }

    void tell_lower(const std::string& bytes, std::vector<bool>& told) const {
        for (std::uint32_t rank = 0; rank < mine.rank; ++rank) {
            if (told[rank]) continue;
            const auto socket = driver::LocalSocket::connect(socket_of(rank), Clock::now());
            told[rank] = socket && socket->send(bytes);
        }
    }

    // Not before they have said who they are: whoever cannot do that takes it for a socket that is left over.
    void tell_unknown(const std::string& bytes, std::vector<bool>& told) {
        for (driver::LocalSocket& socket : std::exchange(unknown, {})) {
            const auto received = socket.receive(longest_message, Clock::now());
            if (!received && received.error().code == ErrorCode::timed_out) {
                unknown.push_back(std::move(socket));
                continue;
            }
            if (!received) continue;
            Contact contact;
            contact.socket = std::move(socket);
            const auto known = read_hello(contact, *received, {});
            const bool sent{contact.socket.send(bytes)};
            if (known && contact.hello.rank < mine.ranks) told[contact.hello.rank] = sent;
        }
    }
};

void Rendezvous::refuse(const Hello& mine, const Error& why, Time until, const std::stop_token& stop) {
    Meeting meeting(*this, mine, -1);
    meeting.refuse(failure_of(meeting.me(), why.to_string()), until, stop);
}

Result<Contacts> Rendezvous::meet(const Hello& mine, int descriptor, Time until, const std::stop_token& stop,
                                  const std::function<Result<void>()>& coming) {
    Meeting meeting(*this, mine, descriptor);
    auto state = Result<void>();
    while (state && !meeting.missing().empty()) {
        if (stop.stop_requested()) state = told_to_stop(meeting.me(), meeting.who_is_missing());
        if (state && coming) state = coming();
        if (state) state = meeting.connect();
        if (state) state = meeting.wait_and_read(until);
        if (state && !meeting.missing().empty() && Clock::now() >= until) state = meeting.late();
    }
    if (state) return std::move(meeting.contacts);
    if (meeting.own_failure)
        meeting.refuse(failure_of(meeting.me(), state.error().to_string()), until, stop);
    else if (meeting.found_here)
        meeting.refuse(state.error(), until, stop);
    else
        meeting.tell_all(state.error());
    return state.error();
}

}  // namespace sidestep::collective
