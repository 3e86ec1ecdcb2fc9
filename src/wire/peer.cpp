#include "wire/peer.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "wire/checked_link.hpp"
#include "wire/data_hello.hpp"
#include "wire/trial.hpp"

namespace sidestep::wire {
namespace {

using Clock = std::chrono::steady_clock;

// A copy of less goes over one socket: more would not be quicker.
constexpr Bytes worth_more_sockets = Bytes{8} << 20;
// To open sockets, where the connection seems to stand.
constexpr int most_tries = 5;
constexpr int first_tries = 3;
// Between two tries to connect again.
constexpr std::chrono::milliseconds pause{100};
// Such a try may take so long: whoever closes the peer waits for it.
constexpr std::chrono::milliseconds one_try{3000};

// The node is there, and will say nothing else.
bool is_final(const Error& error) {
    return error.code == ErrorCode::not_found || error.code == ErrorCode::permission_denied ||
           error.code == ErrorCode::unsupported;
}

}  // namespace

Result<std::shared_ptr<Peer>> Peer::connect(const Tools& tools, const NodeAddress& address, Time until) {
    for (int tries = 1;; ++tries) {
        std::shared_ptr<Peer> peer(new Peer(tools, address));
        const auto begun = peer->begin(until);
        if (begun) return peer;
        // A connection that was cut midway says nothing of the node.
        if (begun.error().code != ErrorCode::io_error || tries == first_tries || Clock::now() >= until)
            return begun.error();
        std::this_thread::sleep_for(pause);
    }
}

Result<void> Peer::begin(Time until) {
    SIDESTEP_TRY(auto line, open_line(greeting(), until));
    SIDESTEP_TRY(hello_, parse_hello(*line->greeted));
    SIDESTEP_CHECK(choose_engine(*line));
    std::lock_guard lock(mutex_);
    if (line->ended) return *line->ended;
    line_ = std::move(line);
    return {};
}

Error Peer::silent() const {
    return Error{ErrorCode::timed_out, fmt::format("{} has not answered in time", name()), "network", {}};
}

Hello Peer::greeting() const {
    Hello ours;
    ours.node = tools_.node;
    ours.session = hello_.session;
    ours.key = hello_.key;
    ours.checked = tools_.engines.checked();
    ours.encrypted = tools_.engines.encrypted();
    std::lock_guard lock(mutex_);
    ours.engines = engines_;
    return ours;
}

Result<void> Peer::choose_engine(const Line& line) {
    SIDESTEP_TRY(const Hello theirs, parse_hello(*line.greeted));
    std::lock_guard lock(mutex_);
    SIDESTEP_TRY(engine_, tools_.engines.agree(engines_, theirs, name()));
    encrypted_.store(theirs.encrypted);
    return {};
}

std::string Peer::engine() const {
    std::lock_guard lock(mutex_);
    return engine_ != nullptr ? std::string(engine_->name()) : std::string();
}

std::string Peer::engine_words() const {
    const auto there = session();
    const std::string over = there ? there->link()->over() : std::string();
    return over.empty() ? engine() : fmt::format("{} ({})", engine(), over);
}

int Peer::links_lost() const {
    const auto there = session();
    return there ? static_cast<int>(there->renewed()) - made_anew_.load() : 0;
}

std::string Peer::take_news() {
    std::lock_guard lock(mutex_);
    return std::exchange(news_, {});
}

void Peer::distrust_engine(const Error& why) {
    std::string name_of_engine;
    {
        std::lock_guard lock(mutex_);
        if (engine_ == nullptr || engines_.size() < 2) return;
        name_of_engine = engine_->name();
        if (name_of_engine == engines_.back()) return;
        const auto now = Clock::now();
        const bool for_good = given_up_ == name_of_engine;
        if (!for_good && engine_->avoid(why) && now - std::exchange(went_on_, now) > engine_pause) return;
        if (std::erase(engines_, name_of_engine) == 0) return;
        // One that was well for long begins anew.
        const bool soon = left_out_.name == name_of_engine && now - left_out_.at < 2 * left_out_.pause;
        if (!for_good)
            left_out_ = {name_of_engine, now,
                         soon ? std::min(2 * left_out_.pause, longest_engine_pause) : engine_pause};
        if (!for_good) fell_.store(true);
    }
    base::log(base::LogLevel::warn,
              fmt::format("{} is not reached by {} any more: {}", name(), name_of_engine, why.to_string()));
}

void Peer::try_left_out() {
    std::string name_of_engine;
    {
        std::lock_guard lock(mutex_);
        if (end_ || goes_on_ || !line_ || left_out_.name.empty() || left_out_.again ||
            Clock::now() - left_out_.at < left_out_.pause)
            return;
        const auto* const engine = tools_.engines.find(left_out_.name);
        if (engine == nullptr || !engine->has_recovered()) return;
        left_out_.again = true;
        left_out_.at = Clock::now();
        fell_.store(false);
        name_of_engine = left_out_.name;
        const auto all = tools_.engines.names();
        const auto kept = std::exchange(engines_, {});
        for (const std::string& one : all)
            if (one == name_of_engine || std::find(kept.begin(), kept.end(), one) != kept.end())
                engines_.push_back(one);
    }
    lost(Error{ErrorCode::cancelled, fmt::format("{} is tried again", name_of_engine), "network", {}});
}

void Peer::note_engine() {
    if (!std::exchange(left_out_.again, false)) return;
    if (session_) made_anew_.fetch_add(1);  // before anything goes over it
    if (engine_->name() == left_out_.name) {
        news_ = fmt::format("{} is reached by {} again", name(), left_out_.name);
        return;
    }
    std::erase(engines_, left_out_.name);
    left_out_ = {left_out_.name, Clock::now(), std::min(2 * left_out_.pause, longest_engine_pause)};
    fell_.store(true);
}

Result<std::shared_ptr<Peer::Line>> Peer::open_line(const Hello& ours, Time until) {
    SIDESTEP_TRY(auto reached, ways_.connect(first_way(), until));
    SIDESTEP_TRY(driver::TlsSession tls, tools_.tls->session(driver::Tls::Role::client, tools_.key));
    auto line = std::make_shared<Line>();
    line->way = reached.way;
    // The line has the channel: they do not keep it.
    Channel::Handlers handlers;
    handlers.message = [self = weak_from_this(), weak = std::weak_ptr(line)](const std::string& message) {
        const auto peer = self.lock();
        const auto there = weak.lock();
        if (peer && there) peer->heard(there, message);
    };
    handlers.ended = [self = weak_from_this(), weak = std::weak_ptr(line)](const Error& why) {
        const auto peer = self.lock();
        const auto there = weak.lock();
        if (peer && there) peer->line_ended(there, why);
    };
    SIDESTEP_TRY(line->channel, Channel::start(tools_.loop, std::move(reached.socket), std::move(tls), name(),
                                               std::move(handlers)));
    auto greeted = greet(line, ours, until);
    if (!greeted) {
        line->channel->close(greeted.error());
        ways_.avoid(line->way);
        return greeted.error();
    }
    return line;
}

// Nothing else goes over a line before the greeting has been answered.
Result<Hello> Peer::greet(const std::shared_ptr<Line>& line, const Hello& ours, Time until) {
    {
        std::lock_guard lock(mutex_);
        line->greeting = next_question_++;
    }
    line->channel->send(to_message(Envelope{Word::hello, line->greeting, to_body(ours)}));
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return line->greeted || line->ended || end_; });
    if (end_) return *end_;
    if (!line->greeted) return line->ended ? *line->ended : silent();
    SIDESTEP_TRY(line->greeted, parse_answer(*line->greeted, name()));
    return parse_hello(*line->greeted);
}

Peer::~Peer() {
    close(Error{ErrorCode::cancelled, "the connection was closed on this side", name(), {}});
}

void Peer::close(const Error& why) {
    std::shared_ptr<Line> line;
    std::shared_ptr<Session> session;
    {
        std::lock_guard lock(mutex_);
        if (end_) return;
        end_ = why;
        line = line_;
        session = session_;
        changed_.notify_all();
    }
    if (line) {
        line->channel->send(to_message(Envelope{Word::leave, 0, {}}));
        line->channel->close(why);
    }
    if (session) session->give_up(why);
}

void Peer::line_ended(const std::shared_ptr<Line>& line, const Error& why) {
    {
        std::lock_guard lock(mutex_);
        line->ended = why;
        changed_.notify_all();
        if (line != line_) return;
    }
    lost(why);
}

void Peer::link_lost(const Error& why) {
    bool by_itself = false;
    {
        std::lock_guard lock(mutex_);
        by_itself = !end_ && !goes_on_ && line_ && !line_->ended;
    }
    if (by_itself) distrust_engine(why);
    lost(why);
}

void Peer::lost(const Error& why) {
    std::shared_ptr<Line> line;
    std::shared_ptr<Session> session;
    {
        std::lock_guard lock(mutex_);
        if (end_ || goes_on_) return;
        line = line_;
        session = session_;
        goes_on_ = true;
    }
    if (const auto end = session ? session->end() : std::nullopt) return close(*end);
    line->channel->close(why);
    // One that is made anew for another engine was well.
    const bool well = why.code == ErrorCode::cancelled;
    if (!well) ways_.avoid(line->way);
    if (session) session->link()->close(why);
    base::log(well ? base::LogLevel::info : base::LogLevel::warn,
              fmt::format("the connection to {} {}: {}", name(), well ? "is made anew" : "was lost",
                          why.to_string()));
    if (!tools_.workers.add([self = shared_from_this(), why] { self->go_on(why); })) close(why);
}

void Peer::go_on(const Error& why) {
    const Time until = Clock::now() + patience;
    while (true) {
        {
            std::lock_guard lock(mutex_);
            if (end_) return;
        }
        const auto done = connect_again(why, until);
        if (done) return;
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, pause, [this] { return end_.has_value(); })) return;
        const auto end = session_ ? session_->end() : std::nullopt;
        if (end || is_final(done.error()) || Clock::now() >= until) {
            lock.unlock();
            return close(end.value_or(why));
        }
    }
}

Result<void> Peer::connect_again(const Error& why, Time until) {
    std::lock_guard opening(opening_);
    until = std::min(until, Clock::now() + one_try);
    SIDESTEP_TRY(const auto line, open_line(greeting(), until));
    SIDESTEP_CHECK(choose_engine(*line));
    const auto there = session();
    if (there) {
        if (auto opened = open_session(*there, why, until); !opened) {
            distrust_engine(opened.error());
            return opened;
        }
    }
    {
        std::lock_guard lock(mutex_);
        if (end_) return *end_;
        if (line->ended) return *line->ended;
        line_ = line;
        goes_on_ = false;
        note_engine();
        for (const auto& [number, question] : questions_)
            if (!question.answer && !waits_its_turn(number)) line->channel->send(question.message);
        changed_.notify_all();
    }
    base::log(base::LogLevel::warn, fmt::format("{} is reached again, at {}", name(), ways_.name(line->way)));
    if (auto replayed = there ? there->replay() : Result<void>(); !replayed) lost(replayed.error());
    return {};
}

Result<void> Peer::open_session(Session& session, const Error& why, Time until) {
    session.link()->end(why);
    if (!session.settle(until)) return silent();
    SIDESTEP_CHECK(session.renew(make_link(*engine_, session.weak_from_this(), tools_.engines.checked())));
    return open_sockets(session, sockets_, until);
}

std::string Peer::where() const {
    std::lock_guard lock(mutex_);
    return ways_.name(line_->way);
}

std::shared_ptr<Channel> Peer::channel() const {
    std::lock_guard lock(mutex_);
    return line_->channel;
}

std::optional<Error> Peer::end() const {
    std::lock_guard lock(mutex_);
    if (end_) return end_;
    return session_ ? session_->end() : std::nullopt;
}

std::shared_ptr<Session> Peer::session() const {
    std::lock_guard lock(mutex_);
    return session_;
}

Result<void> Peer::wait_for_line(Time until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [this] { return !goes_on_ || end_; });
    if (end_) return *end_;
    if (goes_on_) return silent();
    return {};
}

// It may be that the connection is being lost, which is not known here yet, and another takes its place.
Result<std::shared_ptr<Session>> Peer::session(Bytes bytes, Time until) {
    use_better_engine();
    for (int tries = 0;;) {
        auto there = session();
        const std::size_t wanted = bytes < worth_more_sockets ? 1 : most_useful_sockets();
        SIDESTEP_CHECK(wait_for_line(until));
        if (there && there->link()->sockets() >= wanted) return there;
        auto opened = open_for(wanted, until);
        if (opened || is_final(opened.error()) || Clock::now() >= until) return opened;
        there = session();
        if ((!there || !there->waits_for_link()) && ++tries == most_tries) return opened;
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, pause, [this] { return end_.has_value(); })) return *end_;
    }
}

Result<std::shared_ptr<Session>> Peer::open_for(std::size_t wanted, Time until) {
    std::lock_guard opening(opening_);
    auto there = session();
    if (!there) {
        there = std::make_shared<Session>(name());
        there->use(make_link(*engine_, there, tools_.engines.checked()));
        there->outlive_links([self = weak_from_this()](const Error& why) {
            if (const auto peer = self.lock()) peer->link_lost(why);
        });
        std::lock_guard lock(mutex_);
        if (end_) return *end_;
        session_ = there;
    }
    sockets_ = std::max(sockets_, wanted);
    SIDESTEP_CHECK(open_sockets(*there, wanted, until));
    SIDESTEP_CHECK(try_engine(*there, until));
    return there;
}

// Sockets bring what they are given. Once for each other engine; where it fails the next one is used, or none.
Result<void> Peer::try_engine(Session& session, Time until) {
    const std::string name_of_engine = engine();
    if (name_of_engine == "tcp" || std::exchange(tried_engine_, name_of_engine) == name_of_engine) return {};
    const auto done = try_out(*this, session, tools_.engines, std::min(until, Clock::now() + one_try));
    if (done) return {};
    tried_engine_.clear();
    bool last = false;
    {
        std::lock_guard lock(mutex_);
        last = engines_.back() == name_of_engine;
        if (done.error().code == ErrorCode::mismatch) given_up_ = name_of_engine;
    }
    last ? close(done.error()) : session.link()->close(done.error());
    return done;
}

std::size_t Peer::most_useful_sockets() const {
    std::lock_guard lock(mutex_);
    const std::size_t useful =
        std::min({engine_->useful_sockets(), std::size_t{hello_.sockets}, backend::most_sockets});
    return std::max<std::size_t>(useful, 1);
}

Result<Peer::DataSocket> Peer::data_socket(std::size_t way, DataKind kind, Time until) {
    SIDESTEP_TRY(auto reached, ways_.connect(way, until));
    auto entered = enter_session(*tools_.tls, reached.socket, hello_.session, hello_.key, until, kind);
    if (entered) return DataSocket{std::move(reached.socket), std::move(*entered)};
    ways_.avoid(reached.way);
    return entered.error();
}

std::size_t Peer::first_way() const {
    std::lock_guard lock(mutex_);
    return line_ ? line_->way : 0;
}

Result<driver::TcpSocket> Peer::probe_socket(Time until) {
    SIDESTEP_TRY(auto made, data_socket(first_way(), DataKind::probe, until));
    return std::move(made.socket);
}

Result<void> Peer::open_sockets(Session& session, std::size_t wanted, Time until) {
    const auto link = session.link();
    const std::size_t first = first_way();
    const DataKind kind = encrypted() ? DataKind::encrypted_link : DataKind::link;
    while (link->sockets() < wanted) {
        SIDESTEP_TRY(auto made, data_socket(first + link->sockets(), kind, until));
        SIDESTEP_CHECK(link->add(std::move(made.socket).take().release(), made.keys));
    }
    return {};
}

}  // namespace sidestep::wire
