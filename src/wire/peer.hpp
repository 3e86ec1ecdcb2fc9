// Another machine, as a client sees it: questions to it, and the link to its memory.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/workers.hpp"
#include "wire/channel.hpp"
#include "wire/data_hello.hpp"
#include "wire/engines.hpp"
#include "wire/messages.hpp"
#include "wire/session.hpp"
#include "wire/ways.hpp"

namespace sidestep::wire {

// Outlives its connections: where one is lost, it connects again, over another way where there is one, and questions and
// copies go on where they were. Any thread. Lives in a shared_ptr.
class Peer : public std::enable_shared_from_this<Peer> {
public:
    using Time = std::chrono::steady_clock::time_point;
    // How long it tries to connect again.
    static constexpr std::chrono::milliseconds patience{10'000};
    // An engine that failed is tried again so long after, and twice as long each time that it fails again.
    static constexpr std::chrono::milliseconds engine_pause{5'000};
    static constexpr std::chrono::milliseconds longest_engine_pause{300'000};

    // What peers of one client share; outlives them.
    struct Tools {
        driver::EventLoop& loop;
        const Engines& engines;
        base::Workers& workers;  // connect again
        std::shared_ptr<const driver::Tls> tls;
        std::string key;
        std::string node;  // what this machine calls itself
    };

    // Waits until both ends know each other. not_found where nobody listens there, permission_denied where the key is
    // another, unsupported for another version, timed_out.
    static Result<std::shared_ptr<Peer>> connect(const Tools& tools, const NodeAddress& address, Time until);
    ~Peer();
    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;

    // The fields of the answer. As what was asked fails; io_error or timed_out where the peer is gone. What an answer that
    // comes later names is given back.
    Result<std::string> ask(Word word, const std::string& body, Time until);
    // The node does that once, whatever becomes of the connection. Does not wait for it.
    void tell(Word word, const std::string& body);

    // The session, with sockets for a copy of that many bytes: those that small ones need no more are opened when there is
    // one that does.
    Result<std::shared_ptr<Session>> session(Bytes bytes, Time until);
    // That there is, or null.
    std::shared_ptr<Session> session() const;

    // A socket whose other end is a probe of the node (wire/probes.hpp).
    Result<driver::TcpSocket> probe_socket(Time until);
    // How many sockets a large copy uses.
    std::size_t most_useful_sockets() const;

    const NodeAddress& address() const { return ways_.address(); }
    const Hello& hello() const { return hello_; }
    // Where the control connection leads, in numbers: "10.0.0.2:47900".
    std::string where() const;
    // The control connection that it has at present.
    std::shared_ptr<Channel> channel() const;
    // What carries the session: "tcp".
    std::string engine() const;
    // The same for people, with what its bytes go over: "verbs (mlx5_0, mlx5_1)".
    std::string engine_words() const;
    // Where a better engine failed and has recovered, the session is to have a link of it, as if its own were lost. To be called
    // when something is begun; does not block.
    void use_better_engine() {
        if (fell_.load(std::memory_order_relaxed)) try_left_out();
    }
    // What goes over its data sockets is encrypted.
    bool encrypted() const { return encrypted_.load(); }
    // How many of the session's links were lost: one that made room for a better engine was not.
    int links_lost() const;
    // What has become of its engines since this was last asked: "it is reached by verbs again". Empty: nothing.
    std::string take_news();
    // It is worth telling: this machine has another one that might have, or what it does is not plain.
    bool tells_engine() const {
        return tools_.engines.names().size() > 1 || engine() != "tcp" || encrypted();
    }
    // What ended it; nothing while it lasts, or tries to connect again.
    std::optional<Error> end() const;
    // The node is told. What is in flight ends soon: see Link::end().
    void close(const Error& why);

private:
    // A control connection.
    struct Line {
        std::shared_ptr<Channel> channel{};
        std::size_t way = 0;
        std::uint64_t greeting = 0;            // the question's number
        std::optional<std::string> greeted{};  // its answer
        std::optional<Error> ended{};
    };
    struct Question {
        enum class Kind { asked, told, given_up };  // given_up: nobody waits for the answer any more
        Word word{};
        Kind kind = Kind::asked;
        std::string message{};
        std::optional<std::string> answer{};
    };
    // That have not been answered: of what was asked before them a node has its answers still (Served::most_answers).
    static constexpr std::size_t most_told = 128;

    Peer(const Tools& tools, const NodeAddress& address)
        : tools_(tools), ways_(address), engines_(tools.engines.names()) {}

    const std::string& name() const { return ways_.address().name; }
    // The first connection.
    Result<void> begin(Time until);
    // Connected and greeted, but not in use yet.
    Result<std::shared_ptr<Line>> open_line(const Hello& ours, Time until);
    Result<Hello> greet(const std::shared_ptr<Line>& line, const Hello& ours, Time until);
    // One that is connected over that way, or the next that works, and knows the session.
    struct DataSocket {
        driver::TcpSocket socket;
        backend::SocketKeys keys;
    };
    Result<DataSocket> data_socket(std::size_t way, DataKind kind, Time until);
    std::size_t first_way() const;
    // The session with so many sockets, by one try.
    Result<std::shared_ptr<Session>> open_for(std::size_t wanted, Time until);
    Result<void> open_sockets(Session& session, std::size_t wanted, Time until);
    Result<void> try_engine(Session& session, Time until);
    void heard(const std::shared_ptr<Line>& line, const std::string& message);
    // Questions (peer_questions.cpp); with the mutex held, but for the first.
    void send_those_due();
    std::uint64_t add_question(Word word, const std::string& body, Question::Kind kind);
    void take_answer(std::uint64_t number, std::string answer);
    void give_back(Word word, const std::string& answer);
    bool waits_its_turn(std::uint64_t number) const { return !unsent_.empty() && number >= unsent_.front(); }
    Error silent() const;
    void line_ended(const std::shared_ptr<Line>& line, const Error& why);
    // A connection was lost: goes on over another, unless that is under way.
    void lost(const Error& why);
    void link_lost(const Error& why);
    void go_on(const Error& why);
    Result<void> connect_again(const Error& why, Time until);
    Result<void> open_session(Session& session, const Error& why, Time until);
    // What is said to the node, and which engine follows from its answer.
    Hello greeting() const;
    Result<void> choose_engine(const Line& line);
    // A link of the engine failed by itself: it goes on over what the engine has left, once, else another one is used from
    // now on, where there is one.
    void distrust_engine(const Error& why);
    void try_left_out();
    // With the mutex held: what has come of that.
    void note_engine();
    Result<void> wait_for_line(Time until);

    const Tools& tools_;
    Ways ways_;
    Hello hello_;  // constant from connect() on
    std::atomic<bool> encrypted_{false};
    std::atomic<bool> fell_{false};  // an engine is left out, and not being tried
    std::atomic<int> made_anew_{0};  // links, for a better engine
    std::mutex opening_;             // held while sockets are opened, or a line is replaced
    std::size_t sockets_ = 0;        // wanted so far; with opening_ held, as the next
    std::string tried_engine_;       // it brings the bytes that it is given
    mutable std::mutex mutex_;       // guards what follows
    std::condition_variable changed_;
    std::vector<std::string> engines_;  // that are trusted, the best first
    // Another one, that failed last at that time, and is not tried for that long.
    struct LeftOut {
        std::string name;
        Time at{};
        std::chrono::milliseconds pause{0};
        bool again = false;  // it is being tried
    };
    LeftOut left_out_;
    std::string given_up_;  // another one, that brought other bytes: it is not tried again
    Time went_on_{};        // when its link was lost last, and it went on over what was left
    std::string news_;
    backend::NetworkEngine* engine_ = nullptr;
    std::shared_ptr<Line> line_;
    bool goes_on_ = false;  // the line is being replaced
    std::uint64_t next_question_ = 1;
    std::map<std::uint64_t, Question> questions_;
    std::deque<std::uint64_t> unsent_;  // the last of them
    std::size_t told_ = 0;              // of them, and sent
    std::shared_ptr<Session> session_;
    std::optional<Error> end_;
};

}  // namespace sidestep::wire
