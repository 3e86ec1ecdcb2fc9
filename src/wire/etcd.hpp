// Where nodes listen, as etcd knows it: by the HTTP gateway of its version 3.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/http_client.hpp"
#include "wire/address.hpp"

namespace sidestep::wire {

constexpr std::uint16_t etcd_port = 2379;

struct EtcdPlace {
    std::vector<HostPort> members;  // of one cluster: any of them answers
    std::string prefix;             // of keys: "/sidestep/nodes"

    bool operator==(const EtcdPlace&) const = default;
};

// Reads "etcd://HOST[:PORT],.../PREFIX". invalid_argument, with what would be right, on anything else.
Result<EtcdPlace> parse_etcd(std::string_view text);

// What /v3/kv/range answers for one key: its value, or nothing. io_error for anything that is no such answer.
Result<std::optional<std::string>> parse_range_answer(std::string_view body);

// Asks for one node at a time. Any thread.
class Etcd {
public:
    // So long one member may take; the next one is asked then.
    static constexpr std::chrono::milliseconds patience{2000};
    static constexpr std::size_t most_members = 5;

    explicit Etcd(EtcdPlace place) : place_(std::move(place)) {}

    // The value of the key PREFIX/NAME is the node's addresses, as parse_addresses() takes them. not_found where there is no
    // such key; else as the members failed: the last error, with all their names.
    Result<NodeAddress> find(const std::string& node);

private:
    Result<std::shared_ptr<driver::HttpClient>> client();
    Result<std::optional<std::string>> ask(driver::HttpClient& client, const HostPort& member,
                                           const std::string& key) const;

    const EtcdPlace place_;
    std::atomic<std::size_t> answered_{0};  // which member did last
    std::mutex mutex_;                      // guards what follows
    std::shared_ptr<driver::HttpClient> client_;
};

}  // namespace sidestep::wire
