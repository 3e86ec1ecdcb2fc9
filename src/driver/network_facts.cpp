#include "driver/network_facts.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "driver/fd.hpp"
#include "driver/tcp_socket.hpp"

namespace sidestep::driver {
namespace {

constexpr std::size_t most_gids = 256;

// The numbers of an address, without its port. An IPv4 address may be written as an IPv6 one.
std::string numbers_of(const sockaddr* address) {
    if (address == nullptr) return {};
    if (address->sa_family == AF_INET) {
        const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
        return {reinterpret_cast<const char*>(&v4->sin_addr), sizeof(v4->sin_addr)};
    }
    if (address->sa_family != AF_INET6) return {};
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
    const auto* const bytes = reinterpret_cast<const char*>(&v6->sin6_addr);
    return IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? std::string(bytes + 12, 4) : std::string(bytes, 16);
}

std::string interface_of(const std::string& numbers) {
    ifaddrs* all = nullptr;
    if (numbers.empty() || ::getifaddrs(&all) != 0) return {};
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next)
        if (numbers_of(one->ifa_addr) == numbers) return one->ifa_name;
    return {};
}

void add_path_mtu(int socket, int family, NetworkFacts& facts) {
    int mtu = 0;
    socklen_t size = sizeof(mtu);
    const bool v4 = family == AF_INET;
    const int asked =
        ::getsockopt(socket, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU : IPV6_MTU, &mtu, &size);
    if (asked == 0 && mtu > 0) facts["path_mtu"] = std::to_string(mtu);
}

void add_addresses(int socket, NetworkFacts& facts) {
    sockaddr_storage here{};
    socklen_t size = sizeof(here);
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    if (::getsockname(socket, address, &size) != 0) return;
    if (const std::string name = interface_of(numbers_of(address)); !name.empty()) facts["interface"] = name;
    add_path_mtu(socket, here.ss_family, facts);
}

void add_line(const MachineFiles& files, const std::string& path, const char* name, NetworkFacts& facts) {
    if (const auto number = files.number(path); number && *number > 0) facts[name] = std::to_string(*number);
}

// The last of several numbers in a line: of "4096 131072 6291456" the bound.
void add_last(const MachineFiles& files, const std::string& path, const char* name, NetworkFacts& facts) {
    const auto line = files.line(path);
    if (!line || line->empty()) return;
    const auto blank = line->find_last_of(" \t");
    facts[name] = blank == std::string::npos ? *line : line->substr(blank + 1);
}

// "RoCE v2 x 4, IB/RoCE v1 x 4"
std::string gid_types(const MachineFiles& files, const std::string& port) {
    std::map<std::string, int> count;
    std::size_t seen = 0;
    for (const std::string& number : files.names(port + "/gid_attrs/types")) {
        if (++seen > most_gids) break;
        // Reading the type of an entry that is not used fails.
        const auto type = files.line(port + "/gid_attrs/types/" + number);
        if (type && !type->empty()) ++count[*type];
    }
    std::string text;
    for (const auto& [type, times] : count)
        text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", type, times);
    return text;
}

}  // namespace

void add_socket_facts(int socket, const MachineFiles& files, NetworkFacts& facts) {
    add_addresses(socket, facts);
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_rtt > 0)
        facts["round_trip_us"] = std::to_string(info.tcpi_rtt);
    const auto found = facts.find("interface");
    if (found == facts.end()) return;
    const std::string folder = "/sys/class/net/" + found->second;
    add_line(files, folder + "/mtu", "mtu", facts);
    add_line(files, folder + "/speed", "speed_mbit", facts);
}

void add_rdma_facts(const MachineFiles& files, NetworkFacts& facts) {
    const std::string cards = "/sys/class/infiniband";
    for (const std::string& card : files.names(cards)) {
        const std::string ports = fmt::format("{}/{}/ports", cards, card);
        for (const std::string& number : files.names(ports)) {
            const std::string port = fmt::format("{}/{}", ports, number);
            const std::string state = files.line(port + "/state").value_or("state not told");
            const auto colon = state.find(": ");
            facts[fmt::format("rdma.{}.{}", card, number)] =
                fmt::format("{}, {}, {}", colon == std::string::npos ? state : state.substr(colon + 2),
                            files.line(port + "/link_layer").value_or("link layer not told"),
                            files.line(port + "/rate").value_or("rate not told"));
            if (const std::string types = gid_types(files, port); !types.empty())
                facts[fmt::format("gids.{}.{}", card, number)] = types;
        }
    }
    std::string providers;
    for (const std::string& name : files.names("/etc/libibverbs.d"))
        if (name.ends_with(".driver"))
            providers += (providers.empty() ? "" : ", ") + name.substr(0, name.rfind('.'));
    if (!providers.empty()) facts["rdma_providers"] = providers;
}

void add_limit_facts(const MachineFiles& files, NetworkFacts& facts) {
    if (const auto release = files.line("/proc/sys/kernel/osrelease"))
        facts["kernel"] = fmt::format("Linux {}", *release);
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        facts["memlock"] = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
    add_line(files, "/proc/sys/net/core/rmem_max", "rmem_max", facts);
    add_line(files, "/proc/sys/net/core/wmem_max", "wmem_max", facts);
    add_last(files, "/proc/sys/net/ipv4/tcp_rmem", "tcp_rmem_max", facts);
    add_last(files, "/proc/sys/net/ipv4/tcp_wmem", "tcp_wmem_max", facts);
}

}  // namespace sidestep::driver
