// What nodes are called, and where they listen.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>
#include "driver/tcp_socket.hpp"

namespace sidestep::wire {

constexpr std::uint16_t default_port = 47900;
constexpr std::string_view etcd_scheme = "etcd://";

// Where something listens, or shall: a host as a resolver takes it, and a port.
struct HostPort {
    std::string host;
    std::uint16_t port = default_port;

    // "10.0.0.2:47900", "[::1]:47900".
    std::string to_string() const;
    bool operator==(const HostPort&) const = default;
};

// Reads "HOST", "HOST:PORT", "[IPV6]:PORT", "[IPV6]", and an IPv6 number alone ("::1"). invalid_argument, with what
// would be right, on anything else. `port`: where the text has none. Port 0 is taken, for who listens at any that is free.
// Asks no resolver.
Result<HostPort> parse_host_port(std::string_view text, std::uint16_t port = default_port);

// Listens at every address that the resolver has for it, but for those that this machine lacks, such as ::1 where IPv6 is
// off; `addresses` gets each as it is bound, in numbers. timed_out where the resolver has not answered within the limit.
Result<void> listen_at(const HostPort& at, std::vector<driver::TcpListener>& listeners,
                       std::vector<HostPort>& addresses,
                       std::chrono::milliseconds limit = std::chrono::seconds(30));

struct NodeAddress {
    std::string name;          // as Place::node()
    std::vector<HostPort> at;  // one for each way to it, at least one

    bool operator==(const NodeAddress&) const = default;
};

// Reads "NAME=" and one address or more, with commas between them. A name is as Place::parse() takes it.
Result<NodeAddress> parse_node(std::string_view text);

// Addresses of one node, all forms of parse_host_port, with commas between them, each once. Port 0 is for who listens.
enum class Ports { to_reach, to_listen };
Result<std::vector<HostPort>> parse_addresses(std::string_view text, Ports ports = Ports::to_reach);

// Several, with commas between them. A name that is there again tells of one more way to that node; the same way twice is an
// error. Says which entry is wrong. Empty text names nobody.
Result<std::vector<NodeAddress>> parse_nodes(std::string_view text);

struct KnownNodes {
    std::vector<NodeAddress> nodes;
    std::string etcd;  // who knows all others: "etcd://...", as parse_etcd() takes it; empty: nobody is named
};

// Of a file, one a line, empty lines and what follows '#' left out; a line may name etcd. Says which line is wrong.
Result<KnownNodes> read_nodes(const std::string& path);
// Such a list, the path of such a file, or etcd alone.
Result<KnownNodes> known_nodes(const std::string& text);

}  // namespace sidestep::wire
