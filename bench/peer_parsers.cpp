// What the programs print, as their documentation and sources describe it; tests/unit/bench has a sample of
// each.
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/peers.hpp"

namespace sidestep::bench {
namespace {

using Json = nlohmann::json;

// A positive number, or nothing for "N/A" and the like.
std::optional<double> number_of(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value <= 0)
        return std::nullopt;
    return value;
}

std::vector<std::string> words_of(const std::string& line) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

// Which case a test of nvbandwidth belongs to, and how its matrix is read. A "read" test copies from the GPU
// of the column to that of the row, which carries it out; a "write" test the other way round.
struct NvTest {
    const char* name;
    const char* key;
    const char* words;  // of the tool's name in the table
    enum class Ends { host_to_column, column_to_host, row_to_column, column_to_row } ends;
    const char* unit;
};

constexpr NvTest nv_tests[] = {
    {"host_to_device_memcpy_ce", "host_link", "", NvTest::Ends::host_to_column, "GB/s"},
    {"device_to_host_memcpy_ce", "host_link", "", NvTest::Ends::column_to_host, "GB/s"},
    {"device_to_device_memcpy_write_ce", "peer_engine", ", write", NvTest::Ends::row_to_column, "GB/s"},
    {"device_to_device_memcpy_read_ce", "peer_engine", ", read", NvTest::Ends::column_to_row, "GB/s"},
    {"device_to_device_memcpy_write_sm", "peer_kernel", ", write", NvTest::Ends::row_to_column, "GB/s"},
    {"device_to_device_memcpy_read_sm", "peer_kernel", ", read", NvTest::Ends::column_to_row, "GB/s"},
    {"device_to_device_bidirectional_memcpy_write_ce", "peer_both_ways", "", NvTest::Ends::row_to_column,
     "GB/s"},
    {"host_device_latency_sm", "latency_load", "", NvTest::Ends::column_to_host, "ns"},
    {"device_to_device_latency_sm", "latency_load", "", NvTest::Ends::row_to_column, "ns"},
};

PeerFigure nv_figure(const NvTest& test, const std::string& tool, std::size_t row, std::size_t column,
                     double value) {
    const std::string row_gpu = fmt::format("gpu:{}", row), column_gpu = fmt::format("gpu:{}", column);
    PeerFigure figure{.tool = tool + test.words, .key = test.key, .unit = test.unit, .value = value};
    figure.more_is_better = figure.unit == "GB/s";
    switch (test.ends) {
        case NvTest::Ends::host_to_column:
            std::tie(figure.from, figure.to) = std::pair{std::string("host"), column_gpu};
            break;
        case NvTest::Ends::column_to_host:
            std::tie(figure.from, figure.to) = std::pair{column_gpu, std::string("host")};
            break;
        case NvTest::Ends::row_to_column:
            std::tie(figure.from, figure.to) = std::pair{row_gpu, column_gpu};
            break;
        case NvTest::Ends::column_to_row:
            std::tie(figure.from, figure.to) = std::pair{column_gpu, row_gpu};
            break;
    }
    figure.what = fmt::format("{} -> {}", figure.from, figure.to);
    return figure;
}

// A test with several matrices (both directions, then their sum) prints their rows one below the other; the
// last square is the sum.
Result<void> read_matrix(const NvTest& test, const std::string& tool, const Json& matrix,
                         std::vector<PeerFigure>& figures) {
    if (!matrix.is_array() || matrix.empty() || !matrix.back().is_array())
        return unreadable(tool, fmt::format("{} has no matrix", test.name));
    const std::size_t columns = matrix.back().size();
    const std::size_t skipped = matrix.size() > columns ? matrix.size() - columns : 0;
    const bool host = test.ends == NvTest::Ends::host_to_column || test.ends == NvTest::Ends::column_to_host;
    const std::size_t first = host ? matrix.size() - 1 : skipped;
    for (std::size_t row = first; row < matrix.size(); ++row) {
        if (!matrix[row].is_array())
            return unreadable(tool, fmt::format("{} has a row that is not a list", test.name));
        for (std::size_t column = 0; column < matrix[row].size(); ++column) {
            const Json& cell = matrix[row][column];
            const auto value = cell.is_string()   ? number_of(cell.get<std::string>())
                               : cell.is_number() ? std::optional(cell.get<double>())
                                                  : std::nullopt;
            if (value) figures.push_back(nv_figure(test, tool, row - first, column, *value));
        }
    }
    return {};
}

}  // namespace

Error unreadable(const std::string& tool, const std::string& what) {
    return Error{ErrorCode::invalid_argument, what, fmt::format("the output of {}", tool), {}};
}

Result<std::vector<PeerFigure>> parse_nvbandwidth(const std::string& json) {
    // Warnings may stand before the object.
    const std::size_t begin = json.find('{');
    const Json all = Json::parse(begin == std::string::npos ? json : json.substr(begin), nullptr, false);
    const Json root = all.is_object() && all.contains("nvbandwidth") ? all["nvbandwidth"] : Json();
    if (!root.is_object()) return unreadable("nvbandwidth", "it is no JSON of nvbandwidth");
    if (root.contains("error") && root["error"].is_string())
        return unreadable("nvbandwidth", root["error"].get<std::string>());
    std::string tool = "nvbandwidth";
    for (const char* name : {"git_version", "version"})  // the last one that is there counts
        if (root.contains(name) && root[name].is_string())
            tool = "nvbandwidth " + root[name].get<std::string>();
    if (!root.contains("testcases") || !root["testcases"].is_array())
        return unreadable("nvbandwidth", "it has no testcases");
    std::vector<PeerFigure> figures;
    for (const Json& entry : root["testcases"]) {
        if (!entry.is_object() || !entry.contains("name")) return unreadable(tool, "a testcase has no name");
        for (const NvTest& test : nv_tests) {
            if (entry["name"] != test.name) continue;
            const Json status = entry.value("status", Json());
            if (status == "Waived") continue;  // the machine lacks what it needs
            if (status != "Passed") return unreadable(tool, fmt::format("{} did not pass", test.name));
            SIDESTEP_CHECK(read_matrix(test, tool, entry.value("bandwidth_matrix", Json()), figures));
        }
    }
    return figures;
}

// Columns: size, count, type, redop, root, then time, algbw, busbw and the number of wrong values, out of
// place and in place. The columns between count and time differ with the operation, so the last eight are
// counted from the end.
Result<std::vector<PeerFigure>> parse_nccl_tests(const std::string& text, const std::string& program,
                                                 int gpus) {
    std::vector<PeerFigure> figures;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const auto words = words_of(line);
        if (words.size() < 10 || words[0].starts_with("#")) continue;
        const auto bytes = number_of(words[0]);
        const auto busbw = number_of(words[words.size() - 6]);
        const std::string& wrong = words[words.size() - 5];
        if (!bytes || !busbw) continue;
        if (wrong != "0" && wrong != "N/A")
            return unreadable(program, fmt::format("{} values were wrong at {} bytes", wrong, words[0]));
        figures.push_back({.tool = "nccl-tests",
                           .what = fmt::format("{}, {} GPUs, bus bandwidth", program, gpus),
                           .bytes = static_cast<Bytes>(*bytes),
                           .unit = "GB/s",
                           .value = *busbw});
    }
    if (figures.empty()) return unreadable(program, "it has no line of figures");
    return figures;
}

// A line of column names says the unit, which is the one of --report_gbits: others are MiB, called MB by old versions. A line of
// figures follows: bytes, iterations, peak, average, rate.
Result<std::vector<PeerFigure>> parse_perftest(const std::string& text, const std::string& device) {
    bool gigabits = false;
    std::vector<PeerFigure> figures;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.find("#bytes") != std::string::npos) {
            gigabits = line.find("average[Gb/sec]") != std::string::npos;
            continue;
        }
        const auto words = words_of(line);
        if (!gigabits || words.size() < 4) continue;
        const auto bytes = number_of(words[0]), average = number_of(words[3]);
        if (!bytes || !average) continue;
        figures.push_back({.tool = "perftest",
                           .what = fmt::format("ib_write_bw, {}, looped back", device),
                           .bytes = static_cast<Bytes>(*bytes),
                           .unit = "GB/s",
                           .value = *average / 8});
    }
    if (figures.empty()) return unreadable("ib_write_bw", "it has no line of figures");
    return figures;
}

Result<std::vector<PeerFigure>> parse_fio(const std::string& json, bool write) {
    const std::size_t begin = json.find('{');
    const Json root = Json::parse(begin == std::string::npos ? json : json.substr(begin), nullptr, false);
    if (!root.is_object() || !root.contains("jobs") || !root["jobs"].is_array() || root["jobs"].size() != 1 ||
        !root["jobs"][0].is_object())
        return unreadable("fio", "it is no JSON with one job");
    const Json& job = root["jobs"][0];
    const Json error = job.value("error", Json());
    if (error.is_number_integer() && error != 0)
        return unreadable("fio", fmt::format("the job failed with {}", error.get<long long>()));
    const Json side = job.value(write ? "write" : "read", Json());
    const Json rate = side.is_object() ? side.value("bw_bytes", Json()) : Json();
    if (!rate.is_number() || rate.get<double>() <= 0) return unreadable("fio", "the job has no bandwidth");
    const Json version = root.value("fio version", Json("fio"));
    PeerFigure figure{.tool = version.is_string() ? version.get<std::string>() : "fio",
                      .key = "file",
                      .unit = "GB/s",
                      .value = rate.get<double>() / 1e9};
    figure.from = write ? "host" : "file";
    figure.to = write ? "file" : "host";
    figure.what = fmt::format("{} -> {}, O_DIRECT", figure.from, figure.to);
    return std::vector<PeerFigure>{figure};
}

}  // namespace sidestep::bench
