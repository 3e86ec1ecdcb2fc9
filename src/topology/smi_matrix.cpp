#include "topology/smi_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <vector>

#include "base/try.hpp"
#include "topology/link_rates.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology {

namespace {

constexpr std::size_t most_matrix_devices = 256;
constexpr int assumed_generation = 4;
constexpr int assumed_lanes = 16;
// No GPU has more NVLinks, so more than these to single GPUs lead to switches.
constexpr int most_nvlinks = 18;

// Nearest first.
enum Level { pix, pxb, phb, node, sys };
constexpr const char* level_names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};

struct Entry {
    std::string name;  // "GPU0", "NIC3", "mlx5_0"
    bool gpu = false;
    std::string cpus;  // the column "CPU Affinity"; a device with the same one is at the same processor
    std::vector<std::string> cells;
};

struct Matrix {
    std::vector<Entry> entries;
    std::map<std::string, std::string> cards;  // "NIC0" -> "mlx5_0"
};

// nvidia-smi underlines its header, with escape sequences.
std::string without_escapes(std::string_view text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\x1b') {
            while (i < text.size() && text[i] != 'm') ++i;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

std::vector<std::string> words_of(const std::string& line) {
    std::istringstream words(line);
    std::vector<std::string> all;
    for (std::string word; words >> word;) all.push_back(word);
    return all;
}

Error bad_line(const std::string& where, int line, const std::string& why) {
    return Error{ErrorCode::invalid_argument, why, fmt::format("{}:{}", where, line),
                 "the file has to hold what nvidia-smi topo -m or lspci -vvv prints"};
}

Result<int> number(const std::string& text, const Error& error) {
    int value = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (bad != std::errc() || end != text.data() + text.size() || value < 0) return error;
    return value;
}

// The names of the columns up to "CPU Affinity".
std::vector<std::string> columns_of(const std::vector<std::string>& words) {
    const auto end = std::find(words.begin(), words.end(), "CPU");
    return {words.begin(), end};
}

bool is_cell(const std::string& cell) {
    const bool level =
        std::find(std::begin(level_names), std::end(level_names), cell) != std::end(level_names);
    return cell == "X" || level || cell.starts_with("NV");
}

Result<Matrix> parse(std::string_view text, const std::string& where) {
    std::istringstream lines(without_escapes(text));
    Matrix matrix;
    std::vector<std::string> columns;
    int at = 0;
    for (std::string line; std::getline(lines, line);) {
        ++at;
        const auto words = words_of(line);
        if (words.empty()) continue;
        if (columns.empty()) {
            if (words.front() != "GPU0")
                return bad_line(where, at, "this is no matrix of GPUs, and no list of PCI devices");
            columns = columns_of(words);
            if (columns.size() > most_matrix_devices)
                return bad_line(where, at, "there are too many devices");
            continue;
        }
        const bool in_legend = words.front().ends_with(":");
        if (in_legend && words.size() == 2)
            matrix.cards[words.front().substr(0, words.front().size() - 1)] = words.back();
        const std::size_t row = matrix.entries.size();
        if (in_legend || row >= columns.size() || words.front() != columns[row]) continue;
        if (words.size() <= columns.size())
            return bad_line(where, at, words.front() + ": the line is too short");
        Entry entry{words.front(), words.front().starts_with("GPU"), "", {}};
        entry.cells.assign(words.begin() + 1,
                           words.begin() + 1 + static_cast<std::ptrdiff_t>(columns.size()));
        for (const std::string& cell : entry.cells)
            if (!is_cell(cell)) return bad_line(where, at, fmt::format("'{}' is no class of a pair", cell));
        if (words.size() > columns.size() + 1) entry.cpus = words[columns.size() + 1];
        matrix.entries.push_back(std::move(entry));
    }
    if (columns.empty() || matrix.entries.size() != columns.size())
        return bad_line(
            where, at,
            fmt::format("{} of {} lines of the matrix are there", matrix.entries.size(), columns.size()));
    return matrix;
}

// Puts the devices of a matrix into a tree in which every pair has the class that the matrix says. What NVLink joins
// has no class; then the others that both are near to place them.
class MatrixPlacer {
public:
    explicit MatrixPlacer(const Matrix& matrix) : matrix_(matrix) {}

    Result<Topology::Parts> place(const std::string& where) {
        add_cpus();
        for (const auto& members : groups(everyone(), phb)) place_below_bridge(members);
        SIDESTEP_CHECK(join_nvlinks(where));
        builder_.parts().emulated = true;
        builder_.note(fmt::format("the matrix tells no rates: PCIe links are counted as gen{} x{}",
                                  assumed_generation, assumed_lanes));
        return std::move(builder_.parts());
    }

private:
    using Members = std::vector<std::size_t>;

    Members everyone() const {
        Members all(matrix_.entries.size());
        std::iota(all.begin(), all.end(), std::size_t{0});
        return all;
    }

    bool near(std::size_t a, std::size_t b, Level at_most) const {
        for (int level = pix; level <= at_most; ++level)
            if (matrix_.entries[a].cells[b] == level_names[level]) return true;
        return false;
    }

    // Groups of devices joined by pairs of at most that distance.
    std::vector<Members> groups(const Members& members, Level at_most) const {
        std::vector<Members> found;
        std::vector<bool> taken(matrix_.entries.size(), false);
        for (const std::size_t first : members) {
            if (taken[first]) continue;
            taken[first] = true;
            Members group = {first};
            for (std::size_t i = 0; i < group.size(); ++i) {
                for (const std::size_t other : members) {
                    if (taken[other] || !near(group[i], other, at_most)) continue;
                    taken[other] = true;
                    group.push_back(other);
                }
            }
            found.push_back(std::move(group));
        }
        return found;
    }

    void add_cpus() {
        std::map<std::string, DeviceId> known;  // by the column of CPUs
        cpus_.resize(matrix_.entries.size());
        for (const Members& members : groups(everyone(), node)) {
            std::string cpus;
            for (const std::size_t member : members)
                if (cpus.empty() && matrix_.entries[member].gpu) cpus = matrix_.entries[member].cpus;
            const auto found = known.find(cpus);
            DeviceId cpu = 0;
            if (!cpus.empty() && found != known.end()) {
                cpu = found->second;
            } else {
                const int index = builder_.next_index(DeviceKind::cpu);
                cpu = builder_.add({DeviceKind::cpu, index, "", "", "", index, 0});
                if (!cpus.empty()) known.emplace(cpus, cpu);
            }
            for (const std::size_t member : members) cpus_[member] = cpu;
        }
        join_cpus(builder_, assumed_socket_gb_per_s);
    }

    DeviceId add_device(std::size_t member) {
        const Entry& entry = matrix_.entries[member];
        const int numa_node = builder_.device(cpus_[member]).index;
        if (entry.gpu) return builder_.add({DeviceKind::gpu, gpu_index(member), "", "", "", numa_node, 0});
        const auto told = matrix_.cards.find(entry.name);
        const std::string name = "nic:" + (told == matrix_.cards.end() ? entry.name : told->second);
        return builder_.add(
            {DeviceKind::nic, builder_.next_index(DeviceKind::nic), name, "", "", numa_node, 0});
    }

    int gpu_index(std::size_t member) const {
        return static_cast<int>(std::count_if(matrix_.entries.begin(),
                                              matrix_.entries.begin() + static_cast<std::ptrdiff_t>(member),
                                              [](const Entry& entry) { return entry.gpu; }));
    }

    DeviceId add_switch(DeviceId above) {
        const DeviceId made =
            builder_.add({DeviceKind::pcie_switch, builder_.next_index(DeviceKind::pcie_switch), "",
                          "told by nvidia-smi", "", builder_.device(above).numa_node, 0});
        builder_.join_pcie(made, above, assumed_generation, assumed_lanes);
        return made;
    }

    void join(const Members& members, DeviceId above) {
        for (const std::size_t member : members)
            builder_.join_pcie(add_device(member), above, assumed_generation, assumed_lanes);
    }

    void place_below_bridge(const Members& members) {
        const DeviceId cpu = cpus_[members.front()];
        const DeviceId bridge =
            builder_.add({DeviceKind::host_bridge, builder_.next_index(DeviceKind::host_bridge), "",
                          "told by nvidia-smi", "", builder_.device(cpu).index, 0});
        for (const Members& below : groups(members, pxb)) {
            if (below.size() == 1) {
                join(below, bridge);
                continue;
            }
            const DeviceId upper = add_switch(bridge);
            const auto lower = groups(below, pix);
            for (const Members& together : lower)
                join(together, lower.size() == 1 ? upper : add_switch(upper));
        }
        join_host_bridge(builder_, bridge, cpu);
    }

    // The links between each two GPUs; nullopt where the cell is no number.
    std::optional<int> nvlinks(std::size_t a, std::size_t b) const {
        const std::string& cell = matrix_.entries[a].cells[b];
        if (!cell.starts_with("NV")) return 0;
        const auto links = number(cell.substr(2), Error{ErrorCode::invalid_argument, "", "", ""});
        return links && *links <= most_nvlinks ? std::optional(*links) : std::nullopt;
    }

    // NVLink 4 comes 18 at a GPU, older ones are all within 3 % of 25 GB/s.
    static double rate_of(int links) { return links == most_nvlinks ? 26.5625 : 25; }

    Result<void> join_nvlinks(const std::string& where) {
        struct Pair {
            DeviceId a;
            DeviceId b;
            int links;
        };
        std::vector<Pair> pairs;
        Members gpus;
        for (const std::size_t member : everyone())
            if (matrix_.entries[member].gpu) gpus.push_back(member);
        const auto device = [&](std::size_t member) { return *find_gpu(gpu_index(member)); };
        bool alike = true;
        for (std::size_t i = 0; i < gpus.size(); ++i) {
            for (std::size_t j = i + 1; j < gpus.size(); ++j) {
                const auto links = nvlinks(gpus[i], gpus[j]);
                if (!links)
                    return Error{
                        ErrorCode::invalid_argument,
                        fmt::format("'{}' is no number of NVLinks", matrix_.entries[gpus[i]].cells[gpus[j]]),
                        where, ""};
                pairs.push_back({device(gpus[i]), device(gpus[j]), *links});
                alike = alike && *links == pairs.front().links;
            }
        }
        if (pairs.empty()) return {};
        const int links = pairs.front().links;
        const bool switched = alike && links * (static_cast<int>(gpus.size()) - 1) > most_nvlinks;
        if (switched) {
            const DeviceId nvswitch =
                builder_.add({DeviceKind::nvswitch, 0, "", "NVIDIA NVSwitch", "", -1, 0});
            for (const std::size_t gpu : gpus)
                builder_.join_nvlink(device(gpu), nvswitch, links, rate_of(links));
            return {};
        }
        for (const Pair& pair : pairs)
            if (pair.links > 0) builder_.join_nvlink(pair.a, pair.b, pair.links, rate_of(pair.links));
        return {};
    }

    std::optional<DeviceId> find_gpu(int index) const {
        const auto& devices = builder_.parts().devices;
        for (DeviceId id = 0; id < devices.size(); ++id)
            if (devices[id].kind == DeviceKind::gpu && devices[id].index == index) return id;
        return std::nullopt;
    }

    const Matrix& matrix_;
    PartsBuilder builder_;
    std::vector<DeviceId> cpus_;  // by entry
};

}  // namespace

Result<Topology> read_smi_matrix(std::string_view text, const std::string& where) {
    SIDESTEP_TRY(const Matrix matrix, parse(text, where));
    SIDESTEP_TRY(Topology::Parts parts, MatrixPlacer(matrix).place(where));
    parts.name = where;
    return Topology::create(std::move(parts));
}

}  // namespace sidestep::topology
