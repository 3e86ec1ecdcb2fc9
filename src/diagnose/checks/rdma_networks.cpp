// What the network behind RDMA cards lets through: addresses, routes between rails, lost packets.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/process_facts.hpp"
#include "diagnose/checks/rdma_cards.hpp"

namespace sidestep::diagnose {

namespace {

// One entry of a port's table of addresses that is in use.
struct Gid {
    std::string address;  // "0000:0000:0000:0000:0000:ffff:0a00:0001"
    std::string type;     // "IB/RoCE v1", "RoCE v2"; empty: not told

    bool routable() const { return type == "RoCE v2"; }
    bool link_local() const { return address.starts_with("fe80"); }
};

using Gids = std::map<int, Gid>;

Gids gids_of(const driver::MachineFiles& files, const RdmaPort& port) {
    Gids gids;
    for (const std::string& name : files.names(port.folder + "/gids")) {
        const std::string address = files.line(port.folder + "/gids/" + name).value_or("");
        if (address.empty() || address.find_first_not_of("0:") == std::string::npos) continue;
        gids[std::atoi(name.c_str())] = {address,
                                         files.line(port.folder + "/gid_attrs/types/" + name).value_or("")};
    }
    return gids;
}

// The address that RDMA programs should use: RoCE v2, and of an IP address, not of the link alone.
std::optional<int> best_index(const Gids& gids) {
    for (const auto& [index, gid] : gids) {
        if (gid.routable() && !gid.link_local()) return index;
    }
    return std::nullopt;
}

std::string words_of(const Gids& gids) {
    std::vector<std::string> all;
    for (const auto& [index, gid] : gids)
        all.push_back(fmt::format("{}: {}{}", index, gid.type.empty() ? "type not told" : gid.type,
                                  gid.link_local() ? ", link-local" : ""));
    return all.empty() ? "no address" : listed(all, 8);
}

struct ForcedIndex {
    int index = 0;
    Seen seen;
    std::string variable;
};

// A variable that names the index; negative numbers and words ask the library to choose.
std::vector<ForcedIndex> forced_indices(const driver::MachineFiles& files) {
    std::vector<ForcedIndex> forced;
    const auto add = [&](const char* variable, const std::string& value, const std::string& source) {
        char* end = nullptr;
        const long index = std::strtol(value.c_str(), &end, 10);
        if (end != value.c_str() && *end == '\0' && index >= 0 && index < 1 << 16)
            forced.push_back(
                {static_cast<int>(index), {source, fmt::format("{}={}", variable, value)}, variable});
    };
    if (const auto nccl = nccl_setting(files, "NCCL_IB_GID_INDEX"))
        add("NCCL_IB_GID_INDEX", nccl->value, nccl->source);
    const auto environment = process_environment(files);
    const auto ucx = environment ? environment->find("UCX_IB_GID_INDEX") : decltype(environment->end()){};
    if (environment && ucx != environment->end()) add("UCX_IB_GID_INDEX", ucx->second, "/proc/self/environ");
    return forced;
}

// A network in the main routing table. Numbers as the kernel prints them: network byte order, read as a
// number of the machine.
struct Route {
    std::string netdev;
    std::uint32_t destination = 0;
    std::uint32_t gateway = 0;
    std::uint32_t mask = 0;
};

constexpr const char* route_path = "/proc/net/route";

std::vector<Route> routes(const driver::MachineFiles& files) {
    std::vector<Route> all;
    std::istringstream lines(files.text(route_path, std::size_t{1} << 20).value_or(""));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream columns(line);
        std::string netdev;
        std::string destination;
        std::string gateway;
        std::string skipped;
        std::string mask;
        columns >> netdev >> destination >> gateway >> skipped >> skipped >> skipped >> skipped >> mask;
        if (mask.size() != 8 || destination.size() != 8 || gateway.size() != 8) continue;  // the heading too
        const auto number = [](const std::string& text) {
            return static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 16));
        };
        all.push_back({netdev, number(destination), number(gateway), number(mask)});
    }
    return all;
}

std::string network_words(const Route& route) {
    return fmt::format("{}.{}.{}.{}/{}", route.destination & 0xff, route.destination >> 8 & 0xff,
                       route.destination >> 16 & 0xff, route.destination >> 24,
                       __builtin_popcount(route.mask));
}

// The networks of the rails: one for each RoCE port that has one.
struct Rails {
    std::vector<Route> networks;  // each once
    std::vector<std::string> without;
    std::vector<Seen> seen;
};

Rails rails_of(const driver::MachineFiles& files, const std::vector<RdmaPort>& ports,
               const std::vector<Route>& table) {
    Rails rails;
    for (const RdmaPort& port : ports) {
        const std::string netdev = netdev_of(files, port);
        const auto own = std::find_if(table.begin(), table.end(), [&](const Route& route) {
            return route.netdev == netdev && route.gateway == 0 && route.mask != 0;
        });
        if (own == table.end()) {
            rails.without.push_back(port.name);
            continue;
        }
        rails.seen.push_back(
            {fmt::format("{}, {} ({})", route_path, port.name, netdev), network_words(*own)});
        const bool known = std::any_of(rails.networks.begin(), rails.networks.end(), [&](const Route& route) {
            return route.destination == own->destination && route.mask == own->mask;
        });
        if (!known) rails.networks.push_back(*own);
    }
    return rails;
}

// Whether each rail's network device has a route of its own, other than the default one, to every other
// rail's network.
bool all_routed(const Rails& rails, const std::vector<Route>& table) {
    const auto reaches = [&](const Route& from, const Route& to) {
        return std::any_of(table.begin(), table.end(), [&](const Route& route) {
            return route.netdev == from.netdev && route.mask != 0 &&
                   (to.destination & route.mask) == route.destination;
        });
    };
    for (const Route& from : rails.networks) {
        for (const Route& to : rails.networks) {
            if (from.destination != to.destination && !reaches(from, to)) return false;
        }
    }
    return true;
}

// Counters of packets that were lost or came out of order, as mlx5 names them, and what they are counted
// against. Of a cumulative count only the part of all packets means something.
constexpr const char* loss_counters[] = {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
                                         "rnr_nak_retry_err"};
// Thresholds of ours. A few losses while links came up are no sign of anything. Ten are the fewest that tell a rate to
// about a third.
constexpr double tolerated_part = 1e-5;
constexpr long tolerated_losses = 9;

}  // namespace

Outcome look_gid_index(const Evidence& evidence) {
    const auto ports = active_roce_ports(rdma_cards(evidence));
    if (ports.empty()) return does_not_apply("no RDMA port that is up speaks RoCE");
    const auto forced = forced_indices(evidence.files);
    std::vector<Seen> seen;
    std::vector<std::string> wrong;
    std::vector<std::string> without;
    std::vector<std::string> untold;
    std::set<int> best;
    for (const RdmaPort& port : ports) {
        const Gids gids = gids_of(evidence.files, port);
        seen.push_back({port.folder + "/gids", words_of(gids)});
        const bool told =
            std::any_of(gids.begin(), gids.end(), [](const auto& gid) { return !gid.second.type.empty(); });
        if (!told) {
            untold.push_back(port.name);
            continue;
        }
        const auto index = best_index(gids);
        if (index) {
            best.insert(*index);
        } else {
            without.push_back(port.name);
        }
        for (const ForcedIndex& force : forced) {
            const auto found = gids.find(force.index);
            if (found == gids.end() || !found->second.routable())
                wrong.push_back(fmt::format("{} of {}", force.seen.value, port.name));
        }
    }
    const std::string good = best.empty() ? "" : fmt::format("{}", *best.begin());
    Outcome outcome;
    if (!wrong.empty()) {
        outcome = fail(fmt::format("a variable names an address that is not RoCE v2: {}", listed(wrong)));
        outcome.remedy =
            "Take the variable away (NCCL 2.21 and newer choose themselves), or name an index of type RoCE "
            "v2.";
        outcome.command = fmt::format("unset {}", forced.front().variable);
    } else if (!without.empty()) {
        outcome = warn(fmt::format("{} has no RoCE v2 address of an IP network", listed(without)));
        outcome.remedy = "Give the card's network device an IP address; the RoCE v2 address follows from it.";
    } else if (!untold.empty()) {
        outcome = unknown(fmt::format("the types of the addresses of {} cannot be read", listed(untold)));
        outcome.remedy = "In a container, run with the network of the host.";
    } else {
        outcome =
            pass(best.size() == 1 ? fmt::format("every RoCE port has a RoCE v2 address at index {}", good)
                                  : "every RoCE port has a RoCE v2 address");
    }
    for (const ForcedIndex& force : forced) outcome.seen.push_back(force.seen);
    for (Seen& entry : seen) outcome.seen.push_back(std::move(entry));
    return outcome;
}

Outcome look_rail_layout(const Evidence& evidence) {
    const auto ports = active_roce_ports(rdma_cards(evidence));
    if (ports.size() < 2) return does_not_apply("fewer than two RoCE ports are up");
    const auto table = routes(evidence.files);
    Rails rails = rails_of(evidence.files, ports, table);
    const auto cross = nccl_setting(evidence.files, "NCCL_CROSS_NIC");
    Outcome outcome;
    if (!rails.without.empty()) {
        outcome = unknown(fmt::format("the IP network of {} cannot be read", listed(rails.without)));
        outcome.saw(route_path, table.empty() ? "does not exist or empty" : "has no network of it");
        outcome.remedy =
            "In a container, run with the network of the host; otherwise give the network devices addresses.";
        outcome.command = "ip -4 address";
    } else if (rails.networks.size() == 1) {
        outcome = pass(fmt::format("all {} RoCE ports are in one IP network", ports.size()));
    } else if (cross && cross->value == "0") {
        outcome = pass(fmt::format("{} rails, and NCCL keeps to them", rails.networks.size()));
    } else if (all_routed(rails, table)) {
        outcome = pass(fmt::format("{} rails, with routes between them", rails.networks.size()));
    } else if (cross && cross->value == "1") {
        outcome = warn(fmt::format("{} rails without routes between them, and NCCL is told to cross them",
                                   rails.networks.size()));
    } else {
        outcome = unknown(
            fmt::format("{} rails: whether the network carries packets between them cannot be seen from here",
                        rails.networks.size()));
        outcome.remedy = "Where other machines' cards of another rail do not answer, keep NCCL to the rails.";
    }
    if (cross) outcome.saw(cross->source, "NCCL_CROSS_NIC=" + cross->value);
    for (Seen& entry : rails.seen) outcome.seen.push_back(std::move(entry));
    return outcome;
}

Outcome look_roce_losses(const Evidence& evidence) {
    const driver::MachineFiles& files = evidence.files;
    const auto ports = active_roce_ports(rdma_cards(evidence));
    if (ports.empty()) return does_not_apply("no RDMA port that is up speaks RoCE");
    std::vector<Seen> seen;
    std::vector<std::string> lossy;
    int told = 0;
    for (const RdmaPort& port : ports) {
        const auto received = files.number(port.folder + "/counters/port_rcv_packets");
        long lost = 0;
        std::string counts;
        for (const char* name : loss_counters) {
            const auto count = files.number(fmt::format("{}/hw_counters/{}", port.folder, name));
            if (!count) continue;
            counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", name, *count);
            lost = std::max(lost, *count);
        }
        if (counts.empty() || !received) continue;
        ++told;
        seen.push_back(
            {port.folder + "/hw_counters", fmt::format("{} of {} packets received", counts, *received)});
        if (lost > tolerated_losses &&
            static_cast<double>(lost) > tolerated_part * static_cast<double>(*received))
            lossy.push_back(port.name);
    }
    Outcome outcome;
    if (!lossy.empty()) {
        outcome = warn(fmt::format(
            "packets were lost at {}: ten or more, and over one in 100,000, since the counters began",
            listed(lossy)));
    } else if (told == 0) {
        outcome = unknown("the cards show no counters of lost packets");
        outcome.saw(ports.front().folder + "/hw_counters", "has none that is known");
        outcome.remedy = "Look at the counters of the network device, and at those of the switch port.";
        const std::string netdev = netdev_of(files, ports.front());
        outcome.command = fmt::format("ethtool -S {}", netdev.empty() ? "NETDEV" : netdev);
    } else {
        outcome = pass("the RoCE ports lost next to no packets since their counters began");
    }
    for (Seen& entry : seen) outcome.seen.push_back(std::move(entry));
    return outcome;
}

}  // namespace sidestep::diagnose
