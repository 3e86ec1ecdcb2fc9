// Where bytes live.
#pragma once

#include <compare>
#include <memory>
#include <string>
#include <string_view>

#include <sidestep/api.h>
#include <sidestep/result.hpp>

namespace sidestep {

enum class PlaceKind { host, gpu, file, shared, p2pmem };

// A place is a value that prints and parses the same:
//
//   host            host memory, on any NUMA node
//   host:1          host memory of NUMA node 1
//   gpu:3           the memory of GPU 3 (NVML's order, which is PCI bus order)
//   file:/data/x    a file or block device; the path may be relative
//   shared:kv       memory that some process of this machine published as kv (Context::publish)
//   p2pmem:0000:03:00.0  PCI peer-to-peer memory that the driver of that device publishes, such as the controller
//                   memory buffer of an NVMe drive; domain:bus:device.function in hexadecimal
//   node7/gpu:1     the same on the machine called node7
//
// A name of a machine, and one of published memory, is made of letters, digits, '.', '_' and '-'.
class SIDESTEP_API Place {
public:
    // Host memory, on any NUMA node.
    Place() = default;

    static Place host() { return {}; }
    static Place host(int numa_node) { return Place(PlaceKind::host, numa_node, {}); }
    static Place gpu(int index) { return Place(PlaceKind::gpu, index, {}); }
    static Place file(std::string path) { return Place(PlaceKind::file, -1, std::move(path)); }

    static Place shared(std::string name) { return Place(PlaceKind::shared, -1, std::move(name)); }

    // `bus_id` as in the form above.
    static Place p2pmem(std::string bus_id) { return Place(PlaceKind::p2pmem, -1, std::move(bus_id)); }

    // Reads the forms above. Fails with ErrorCode::invalid_argument and a hint; asks no device whether
    // it exists.
    static Result<Place> parse(std::string_view text);

    // The same place on the machine called `node`; an empty name means this machine.
    Place on(std::string node) const;

    PlaceKind kind() const { return kind_; }
    bool is_host() const { return kind_ == PlaceKind::host; }
    bool is_gpu() const { return kind_ == PlaceKind::gpu; }
    bool is_file() const { return kind_ == PlaceKind::file; }
    bool is_shared() const { return kind_ == PlaceKind::shared; }
    bool is_p2pmem() const { return kind_ == PlaceKind::p2pmem; }

    // The GPU's number, or the NUMA node of host memory (-1: any), or -1 for the others.
    int index() const { return index_; }
    // The path of a file place, the name of a shared one, the bus id of p2pmem, empty otherwise.
    const std::string& path() const { return (names_ ? *names_ : none_).path; }
    // The machine's name, empty for this one.
    const std::string& node() const { return (names_ ? *names_ : none_).node; }

    std::string to_string() const;

    bool operator==(const Place& other) const;
    std::strong_ordering operator<=>(const Place& other) const;

private:
    struct Names {
        std::string path;
        std::string node;
    };
    Place(PlaceKind kind, int index, std::string path);

    static inline const Names none_{};

    PlaceKind kind_ = PlaceKind::host;
    int index_ = -1;
    std::shared_ptr<const Names> names_;  // shared by copies; null: neither
};

}  // namespace sidestep
