#include "tests/unit/bench/example_reports.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

namespace sidestep::bench {

using namespace sidestep::literals;

const char* const hostile_text =
    "</script><script>alert(1)</script>]]>--><img src=x onerror=alert(1)>\"'&amp;\x01\xff</title></style>";

namespace {

// Numbers that look like noise and are the same in every run.
class Noise {
public:
    // Between -1 and 1.
    double next() {
        state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<double>(state_ >> 40) / static_cast<double>(1 << 23) - 1;
    }

private:
    std::uint64_t state_ = 88172645463325252ULL;
};

class Maker {
public:
    Samples samples(double middle, double spread, int count = 9) {
        Samples made;
        for (int i = 0; i < count; ++i) made.values.push_back(middle * (1 + spread * noise_.next()));
        return made;
    }

    Figure rate(const std::string& from, const std::string& to, const std::string& words, Bytes bytes,
                double value, double limit) {
        Figure figure;
        figure.what = fmt::format("{} -> {}{}{}", from, to, words.empty() ? "" : ", ", words);
        figure.from = from;
        figure.to = to;
        figure.bytes = bytes;
        figure.unit = "GB/s";
        figure.measured = samples(value, 0.006);
        figure.limit = limit;
        figure.verified = true;
        return figure;
    }

    Figure value(const std::string& what, const std::string& unit, double middle, double spread) {
        Figure figure;
        figure.what = what;
        figure.unit = unit;
        figure.more_is_better = unit != "us" && unit != "ns";
        figure.measured = samples(middle, spread);
        return figure;
    }

    double noise() { return noise_.next(); }

private:
    Noise noise_;
};

std::string gpu(int index) {
    return fmt::format("gpu:{}", index);
}

// A link that needs `latency` seconds before the first byte.
double rate_of(Bytes bytes, double gb_per_s, double latency) {
    const double size = static_cast<double>(bytes);
    return size / (latency + size / (gb_per_s * 1e9)) / 1e9;
}

void set_threshold(Figure& figure, double threshold) {
    figure.threshold = threshold;
    const double median = figure.measured.median();
    figure.verdict =
        (figure.more_is_better ? median >= threshold : median <= threshold) ? Verdict::pass : Verdict::fail;
}

CaseResult host_link(Maker& make) {
    CaseResult result{"host_link", "pinned host memory to one GPU and back", "", "", {}, {}};
    for (int i = 0; i < 4; ++i)
        for (const bool up : {true, false}) {
            Figure figure = up ? make.rate("host", gpu(i), "", 1_GiB, i == 2 ? 47.5 : 55.2, 55.5)
                               : make.rate(gpu(i), "host", "", 1_GiB, 54.9, 55.4);
            figure.limit_source = "raw loop, same run";
            figure.path = fmt::format("{} -> {} (copy engine)", up ? "host" : gpu(i), up ? gpu(i) : "host");
            figure.peers.push_back({"nvbandwidth 0.8", make.samples(55.4, 0.001)});
            set_threshold(figure, 54);
            result.figures.push_back(figure);
        }
    return result;
}

CaseResult peers(Maker& make) {
    CaseResult result{"peer", "one GPU to another, by copy engine and by kernel", "", "", {}, {}};
    result.notes = {"This is an example: no figure on this page was measured."};
    for (const bool engine : {true, false})
        for (int from = 0; from < 4; ++from)
            for (int to = 0; to < 4; ++to) {
                if (from == to) continue;
                const double slow = from == 1 && to == 3 ? 0.86 : from == 3 && to == 1 ? 0.61 : 1;
                Figure figure =
                    make.rate(gpu(from), gpu(to), engine ? "copy engine" : "kernel", 1_GiB,
                              slow * (engine ? 393.5 : 372 + 12 * make.noise()), engine ? 396.2 : 396.2);
                figure.limit_source = "link: 18 x NVLink";
                figure.path =
                    fmt::format("{} -> {} ({})", gpu(from), gpu(to), engine ? "copy engine" : "kernel");
                figure.peers.push_back({"nvbandwidth 0.8", make.samples(engine ? 395 : 373, 0.002)});
                result.figures.push_back(figure);
            }
    return result;
}

CaseResult latency_matrix(Maker& make) {
    CaseResult result{"peer_latency", "pointer chase by a kernel over another GPU's memory", "", "", {}, {}};
    for (int from = 0; from < 4; ++from)
        for (int to = 0; to < 4; ++to) {
            Figure figure =
                make.value(fmt::format("{} -> {}", gpu(from), gpu(to)), "ns",
                           from == to ? 612 : 827 + 40 * std::abs(from - to) + 9 * make.noise(), 0.01);
            figure.from = gpu(from);
            figure.to = gpu(to);
            result.figures.push_back(figure);
        }
    return result;
}

CaseResult over_size(Maker& make) {
    CaseResult result{"peer_sizes", "one GPU to another from 4 KiB to 4 GiB", "", "", {}, {}};
    for (int to = 1; to < 4; ++to)
        for (Bytes bytes = 4_KiB; bytes <= 4_GiB; bytes *= 4) {
            Figure figure = make.rate(gpu(0), gpu(to), "", bytes, rate_of(bytes, 394, 7.4e-6), 396.2);
            figure.measured = make.samples(rate_of(bytes, 394, 7.4e-6), bytes < 1_MiB ? 0.18 : 0.02);
            figure.limit_source = "link: 18 x NVLink";
            figure.path = fmt::format("gpu:0 -> {} (copy engine)", gpu(to));
            figure.peers.push_back({"bare cuMemcpyAsync", make.samples(rate_of(bytes, 394.5, 5.9e-6), 0.02)});
            result.figures.push_back(figure);
        }
    return result;
}

CaseResult lanes(Maker& make) {
    CaseResult result{"lanes", "pinned host memory to one GPU over the links of several", "", "", {}, {}};
    struct Way {
        const char* words;
        double gb_per_s, latency;
    };
    for (const Way& way :
         {Way{"1 lane", 55.2, 9e-6}, Way{"2 lanes", 104, 40e-6}, Way{"all lanes", 178, 90e-6}})
        for (Bytes bytes = 1_MiB; bytes <= 8_GiB; bytes *= 2) {
            Figure figure =
                make.rate("host", gpu(0), way.words, bytes, rate_of(bytes, way.gb_per_s, way.latency),
                          std::string(way.words) == "1 lane" ? 55.5 : 222);
            figure.limit_source =
                std::string(way.words) == "1 lane" ? "link: PCIe gen5 x16" : "sum of four links";
            figure.path = "host -> gpu:0 and 3 lanes over neighbours";
            if (bytes == 8_GiB && figure.limit > 200) set_threshold(figure, 175);
            result.figures.push_back(figure);
        }
    return result;
}

CaseResult small_things(Maker& make) {
    CaseResult result{"calls", "what one call costs", "", "", {}, {}};
    Figure submit = make.value("submit a 4 KiB copy, host -> gpu:0", "us", 3.33, 0.05);
    submit.peers.push_back({"bare cuMemcpyAsync", make.samples(1.58, 0.02)});
    submit.limit = 1.58;
    submit.limit_source = "bare call, same run";
    Figure chase = make.value("flag ping-pong of 8 bytes, gpu:0 and gpu:1", "ns", 861, 0.01);
    chase.limit = 827;
    chase.limit_source = "pointer chase, same run";
    set_threshold(chase, 909.7);
    Figure many = make.value("10,000 copies of 4 KiB, gpu:0 -> gpu:1", "M/s", 2.31, 0.03);
    many.peers.push_back({"loop of cuMemcpyPeerAsync", make.samples(0.38, 0.01)});
    many.verified = true;
    set_threshold(many, 1.9);
    Figure import = make.value("import of a buffer that was seen before", "us", 0.41, 0.04);
    set_threshold(import, 1);
    result.figures = {submit, chase, many, import};
    return result;
}

std::string example_topology() {
    std::ifstream file(SIDESTEP_SOURCE_DIR "/tests/recorded/h200x4-vm.json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    auto json = nlohmann::json::parse(text);
    json["name"] = "example";
    return json.dump();
}

}  // namespace

Report example_report() {
    Maker make;
    Report report;
    report.version = "0.1.0";
    report.date = "2026-01-01T12:00:00Z";
    report.command = "sidestep bench --peers --html report.html";
    report.machine = "example";
    report.processor = "example processor, 64 cores";
    report.kernel = "Linux 6.18.0";
    report.driver = "580.0, CUDA 13.0";
    report.topology = example_topology();
    report.notes = {"perftest and fio are not on PATH: no peers for network and files."};
    report.cases = {host_link(make), peers(make),          over_size(make),
                    lanes(make),     latency_matrix(make), small_things(make)};
    report.cases.push_back(
        {"storage", "files on NVMe drives to a GPU", "this machine has no NVMe drive", "", {}, {}});
    report.cases.push_back({"ipc",
                            "memory of another process",
                            "",
                            "timed out: the other process did not answer in 10 s (peer at pid 4711)",
                            {},
                            {}});
    return report;
}

Report large_report() {
    Maker make;
    Report report = example_report();
    report.cases.clear();
    for (int number = 0; number < 4; ++number) {
        CaseResult result{fmt::format("case_{}", number), "12 pairs at 20 sizes", "", "", {}, {}};
        for (int from = 0; from < 4; ++from)
            for (int to = 0; to < 4; ++to)
                for (Bytes bytes = 8_KiB; from != to && bytes <= 4_GiB; bytes *= 2) {
                    Figure figure =
                        make.rate(gpu(from), gpu(to), "copy engine", bytes, rate_of(bytes, 394, 7e-6), 396.2);
                    figure.limit_source = "link: 18 x NVLink";
                    figure.path = fmt::format("{} -> {} (copy engine)", gpu(from), gpu(to));
                    figure.peers.push_back(
                        {"bare cuMemcpyAsync", make.samples(rate_of(bytes, 394, 6e-6), 0.01)});
                    result.figures.push_back(figure);
                }
        report.cases.push_back(result);
    }
    return report;
}

Report hostile_report() {
    Maker make;
    const std::string text = hostile_text;
    Report report;
    report.version = report.date = report.command = report.machine = text;
    report.processor = report.kernel = report.driver = text;
    report.notes = {text};
    auto topology = nlohmann::json::parse(example_topology());
    topology["name"] = "</style><script>alert(1)</script>\"'&]]>";
    report.topology = topology.dump();
    CaseResult result{text, text, text, text, {}, {text}};
    constexpr double infinite = std::numeric_limits<double>::infinity();
    for (const double value : {1.0, 0.0, -3.0, infinite, -infinite, std::nan("")})
        for (const Bytes bytes : {Bytes{0}, Bytes{1}, Bytes{4096}, ~Bytes{0}}) {
            Figure figure = make.rate(text + "a", text + "b", text, bytes, 1, value);
            figure.measured.values = {value, value, 2};
            figure.unit = figure.limit_source = figure.path = text;
            figure.peers = {{text, {{value}}}, {text + "2", {}}};
            figure.threshold = value;
            figure.verdict = Verdict::fail;
            result.figures.push_back(figure);
            figure.to += "c";
            figure.what = fmt::format("{} -> {}, {}", figure.from, figure.to, text);
            figure.measured.values.clear();
            result.figures.push_back(figure);
        }
    report.cases = {result};
    return report;
}

}  // namespace sidestep::bench
