// The network follows NVIDIA's DGX SuperPOD reference architectures (DGX H100, RA-11333; DGX B200, table
// "Larger SuperPOD component counts"): scalable units of 32 machines, eight rails, switches of 64 ports,
// leaves with as many ports up as down. For eight rails the numbers of switches are those of that table: 2
// units have 16 leaves and 8 spines, 4 have 32 and 16, 8 have 64 and 32; 16 have 128, 128 and 64 cores, 32
// have 256, 256 and 128, 64 have 512, 512 and 256. Above 64 units the cores are wider than any 64-port
// switch.
#include "topology/models/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "topology/link_rates.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology::models {

namespace {

constexpr int unit_nodes = 32;
constexpr int switch_ports = 64;

// From one switch to the next. InfiniBand switches take below 0.13 us (NVIDIA QM8700 data sheet); 15 m of
// fibre take another 0.07 us.
constexpr double between_switches_us = 0.2;

// How many nodes a machine has; 1 for all but racks.
int nodes_of(const Topology::Parts& machine) {
    int highest = 0;
    for (const Device& device : machine.devices) highest = std::max(highest, device.node);
    return highest + 1;
}

int power_of_two_above(int number) {
    int power = 1;
    while (power < number) power *= 2;
    return power;
}

int divide_up(int number, int by) {
    return (number + by - 1) / by;
}

// The part of a name that is left of a node: "gpu:1" of "node3/gpu:1".
std::string_view local_name(std::string_view name) {
    const auto slash = name.find('/');
    return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

// How indices count on from one copy to the next, by kind.
std::map<DeviceKind, int> index_steps(const Topology::Parts& machine) {
    std::map<DeviceKind, int> steps;
    for (const Device& device : machine.devices) {
        int& step = steps[device.kind];
        step = std::max(step, device.index + 1);
    }
    return steps;
}

// Adds the switches and links of the network to a cluster.
class Network {
public:
    Network(Topology::Parts& parts, int nodes, int nodes_a_machine, const Rails& rails)
        : parts_(parts), rails_(rails) {
        // A machine of several nodes, a rack, is not torn apart.
        per_unit_ =
            nodes_a_machine >= unit_nodes ? nodes_a_machine : unit_nodes / nodes_a_machine * nodes_a_machine;
        units_ = divide_up(nodes, per_unit_);
        down_ = std::min(per_unit_, nodes);
    }

    // The most switches and links that a network has. Without room for them all else would be moved, and be there
    // twice meanwhile.
    static Spare most(int nodes, int nodes_a_machine, const Rails& rails) {
        Topology::Parts none;
        const Network network(none, nodes, nodes_a_machine, rails);
        const auto down = static_cast<std::size_t>(network.down_);
        const auto a_unit = static_cast<std::size_t>(rails.count);
        const std::size_t leaves = static_cast<std::size_t>(network.units_) * a_unit;
        return {2 * leaves + (a_unit + 1) * down,
                static_cast<std::size_t>(nodes) * a_unit + leaves * (a_unit + down)};
    }

    // cards[node * rails + rail]
    void build(const std::vector<DeviceId>& cards) {
        const auto leaves = static_cast<std::size_t>(units_) * static_cast<std::size_t>(rails_.count);
        for (std::size_t i = 0; i < leaves; ++i) add_switch(leaf_words(i));
        for (std::size_t i = 0; i < cards.size(); ++i) {
            const auto rail = i % static_cast<std::size_t>(rails_.count);
            const auto unit =
                i / static_cast<std::size_t>(rails_.count) / static_cast<std::size_t>(per_unit_);
            join(cards[i], first_ + unit * static_cast<std::size_t>(rails_.count) + rail, 1,
                 network_latency_us);
        }
        if (leaves == 1) return;
        if (leaves <= switch_ports)
            add_spines();
        else
            add_spines_and_cores();
    }

private:
    // One layer of spines, each joined to every leaf.
    void add_spines() {
        const int leaves = units_ * rails_.count;
        const int spines = std::min(down_, power_of_two_above(divide_up(leaves * down_, switch_ports)));
        for (int spine = 0; spine < spines; ++spine) {
            const DeviceId id = add_switch(fmt::format("spine {}", spine));
            for (int leaf = 0; leaf < leaves; ++leaf)
                join(first_ + static_cast<DeviceId>(leaf), id, divide_up(down_, spines), between_switches_us);
        }
    }

    // As many spines as leaves in every unit; spine s of all units goes to the cores of group s.
    void add_spines_and_cores() {
        const int groups = rails_.count;
        const auto first_spine = static_cast<DeviceId>(parts_.devices.size());
        for (int unit = 0; unit < units_; ++unit) {
            for (int spine = 0; spine < groups; ++spine) {
                const DeviceId id = add_switch(fmt::format("spine {} of unit {}", spine, unit));
                for (int leaf = 0; leaf < rails_.count; ++leaf)
                    join(first_ + static_cast<DeviceId>(unit * rails_.count + leaf), id,
                         divide_up(down_, groups), between_switches_us);
            }
        }
        const int cores = std::min(down_, power_of_two_above(divide_up(units_ * down_, switch_ports)));
        for (int group = 0; group < groups; ++group) {
            for (int core = 0; core < cores; ++core) {
                const DeviceId id = add_switch(fmt::format("core {} of group {}", core, group));
                for (int unit = 0; unit < units_; ++unit)
                    join(first_spine + static_cast<DeviceId>(unit * groups + group), id,
                         divide_up(down_, cores), between_switches_us);
            }
        }
    }

    std::string leaf_words(std::size_t leaf) const {
        const auto rails = static_cast<std::size_t>(rails_.count);
        return fmt::format("leaf of rail {} of unit {}", leaf % rails, leaf / rails);
    }

    DeviceId add_switch(std::string words) {
        const int index = switches_++;
        const auto id = static_cast<DeviceId>(parts_.devices.size());
        if (index == 0) first_ = id;
        parts_.devices.push_back({DeviceKind::net_switch, index, device_name(DeviceKind::net_switch, index),
                                  std::move(words), "", -1, 0, -1});
        return id;
    }

    void join(std::size_t a, std::size_t b, int width, double latency_us) {
        parts_.links.push_back({static_cast<DeviceId>(a), static_cast<DeviceId>(b), LinkKind::network, width,
                                width * rails_.gb_per_s, latency_us});
    }

    Topology::Parts& parts_;
    Rails rails_;
    int per_unit_ = 0;
    int units_ = 0;
    int down_ = 0;  // the most cards a leaf has, and so the links up it needs
    int switches_ = 0;
    DeviceId first_ = 0;  // of the leaves
};

// Facts that no route depends on took a quarter of the memory of a large cluster.
constexpr std::ptrdiff_t most_gpus_with_facts = 10000;

bool is_large(const Topology::Parts& machine, int count) {
    const auto is_gpu = [](const Device& device) { return device.kind == DeviceKind::gpu; };
    return std::count_if(machine.devices.begin(), machine.devices.end(), is_gpu) * count >
           most_gpus_with_facts;
}

// Rates depend on the models of GPUs and processors alone.
Topology::Parts without_facts(Topology::Parts machine) {
    for (Device& device : machine.devices) {
        device.properties.clear();
        if (device.kind != DeviceKind::gpu && device.kind != DeviceKind::cpu) device.model.clear();
    }
    return machine;
}

// Ways spread over all NVSwitches that join the same devices, so one with the links of all leads to the same routes. The
// eighteen of a GB200 tray took two thirds of the memory of its cluster.
Topology::Parts with_nvswitches_as_one(Topology::Parts machine) {
    PartsBuilder builder;
    builder.parts() = std::move(machine);
    auto& links = builder.parts().links;
    std::map<std::vector<DeviceId>, std::vector<std::size_t>>
        kept;  // the links of a switch, by what it joins
    std::set<DeviceId> others;
    for (DeviceId id = 0; id < builder.parts().devices.size(); ++id) {
        if (builder.device(id).kind != DeviceKind::nvswitch) continue;
        std::vector<DeviceId> joined;
        std::vector<std::size_t> own;
        for (std::size_t i = 0; i < links.size(); ++i) {
            if (links[i].a != id && links[i].b != id) continue;
            joined.push_back(links[i].a == id ? links[i].b : links[i].a);
            own.push_back(i);
        }
        const auto [first, is_new] = kept.emplace(std::move(joined), own);
        if (is_new) continue;
        others.insert(id);
        for (std::size_t i = 0; i < own.size(); ++i) {
            Link& bundle = links[first->second[i]];
            bundle.width += links[own[i]].width;
            bundle.gb_per_s += links[own[i]].gb_per_s;
        }
    }
    builder.remove(others);
    return std::move(builder.parts());
}

// Where a machine's cards of the network are: [node * rails + rail].
std::vector<DeviceId> network_cards(const Topology::Parts& machine, int nodes, int rails) {
    std::vector<std::vector<DeviceId>> by_node(static_cast<std::size_t>(nodes));
    for (DeviceId id = 0; id < machine.devices.size(); ++id) {
        const Device& device = machine.devices[id];
        if (device.kind == DeviceKind::nic) by_node[static_cast<std::size_t>(device.node)].push_back(id);
    }
    std::vector<DeviceId> cards;
    for (std::vector<DeviceId>& node : by_node) {
        std::sort(node.begin(), node.end(), [&](DeviceId a, DeviceId b) {
            return machine.devices[a].index < machine.devices[b].index;
        });
        cards.insert(cards.end(), node.begin(), node.begin() + rails);
    }
    return cards;
}

}  // namespace

Topology::Parts copies(const Topology::Parts& machine, int count, Spare spare) {
    const int nodes = nodes_of(machine);
    const auto steps = index_steps(machine);
    Topology::Parts all = machine;
    all.devices.clear();
    all.links.clear();
    all.peers.clear();
    all.devices.reserve(machine.devices.size() * static_cast<std::size_t>(count) + spare.devices);
    all.links.reserve(machine.links.size() * static_cast<std::size_t>(count) + spare.links);
    for (int copy = 0; copy < count; ++copy) {
        const auto offset = static_cast<DeviceId>(all.devices.size());
        for (const Device& device : machine.devices) {
            Device& made = all.devices.emplace_back(device);
            made.index += copy * steps.at(device.kind);
            if (device.node >= 0) {
                made.node += copy * nodes;
                made.name = fmt::format("node{}/{}", made.node, local_name(device.name));
            } else {
                made.name = device_name(made.kind, made.index);
            }
        }
        for (Link link : machine.links) {
            link.a += offset;
            link.b += offset;
            all.links.push_back(link);
        }
        const auto gpus = steps.find(DeviceKind::gpu);
        for (Topology::Parts::Peer peer : machine.peers) {
            peer.from += copy * gpus->second;
            peer.to += copy * gpus->second;
            all.peers.push_back(peer);
        }
    }
    return all;
}

Topology::Parts cluster(Topology::Parts machine, int count, const Rails& rails) {
    if (is_large(machine, count)) {
        machine = with_nvswitches_as_one(without_facts(std::move(machine)));
        machine.notes.emplace_back(
            "a cluster of more than 10,000 GPUs: properties of its devices are left out, and NVSwitches that "
            "join the "
            "same GPUs are shown as one");
    }
    const int nodes = nodes_of(machine);
    Topology::Parts all = copies(machine, count, Network::most(nodes * count, nodes, rails));
    const std::vector<DeviceId> of_machine = network_cards(machine, nodes, rails.count);
    std::vector<DeviceId> cards;
    cards.reserve(of_machine.size() * static_cast<std::size_t>(count));
    for (int copy = 0; copy < count; ++copy) {
        const auto offset = static_cast<DeviceId>(machine.devices.size()) * static_cast<DeviceId>(copy);
        for (const DeviceId card : of_machine) cards.push_back(offset + card);
    }
    Network(all, nodes * count, nodes, rails).build(cards);
    return all;
}

}  // namespace sidestep::topology::models
