// What stands between a client and a node, and can do to their connections what a network does.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sidestep::test {

// Passes on whatever comes to a port of its own.
class Proxy {
public:
    // `port`: of the node, on this machine.
    explicit Proxy(const std::string& port);
    ~Proxy();
    Proxy(const Proxy&) = delete;
    Proxy& operator=(const Proxy&) = delete;

    // "127.0.0.1:PORT".
    const std::string& address() const { return address_; }
    // Ends all connections that there are; of those that came after so many.
    void cut(int after = 0);
    // Passes nothing on from now on, as a link that is down, or does so again. Connections are taken all the same.
    void stall(bool stalled) { stalled_ = stalled; }
    // Changes one byte of what clients send over the connection of that number, from 1 on.
    void damage(int connection, std::size_t byte) {
        damaged_byte_ = byte;
        damaged_ = connection;
    }
    // Looks for these bytes in all that passes from now on, either way.
    void look_for(std::string words);
    // How often they were seen.
    int seen() const { return seen_; }
    // What clients send over connections that come from now on is kept, each by itself.
    void record() { records_ = true; }
    std::vector<std::string> recorded();
    // Takes no connection from now on.
    void refuse();
    // Connections so far.
    int connections() const { return connections_; }
    // Bytes of clients that were passed on so far. Whoever sent them hears of it later.
    std::size_t bytes_passed() const { return bytes_passed_; }

private:
    struct Pair {
        int client = -1;
        int node = -1;
        int number = 0;
        std::thread there{};
        std::thread back{};
    };
    void accept();
    // `number`: of the connection, where its bytes may be damaged.
    void pass(int from, int to, int number, std::string* record);
    void count(std::string& passed, const char* bytes, std::size_t size);

    const std::string port_;
    int listener_ = -1;
    std::string address_;
    std::atomic<bool> stalled_{false};
    std::atomic<bool> ending_{false};
    std::atomic<int> connections_{0};
    std::atomic<std::size_t> bytes_passed_{0};
    std::atomic<int> damaged_{0};
    std::atomic<std::size_t> damaged_byte_{0};
    std::atomic<int> seen_{0};
    std::atomic<bool> records_{false};
    std::mutex mutex_;
    std::string words_;  // guarded by it, as what follows
    std::list<std::string> recorded_;
    std::list<Pair> pairs_;
    std::thread accepting_;
};

}  // namespace sidestep::test
