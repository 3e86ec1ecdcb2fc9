#include "bench/html/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <tuple>

namespace sidestep::bench::html {

namespace {

// More than this many lines in one chart are not told apart.
constexpr std::size_t max_lines = 6;

// "gpu" of "node1/gpu:3".
std::string kind_of(const std::string& place) {
    const std::size_t slash = place.find('/');
    const std::string local =
        slash == std::string::npos || place.rfind("file:", 0) == 0 ? place : place.substr(slash + 1);
    return local.substr(0, local.find(':'));
}

void cut(std::string& text, std::size_t at, std::size_t length) {
    text.erase(at, length);
    if (const std::size_t gap = text.find(", , "); gap != std::string::npos) text.erase(gap, 2);
    const auto is_edge = [](char one) { return one == ' ' || one == ','; };
    while (!text.empty() && is_edge(text.front())) text.erase(0, 1);
    while (!text.empty() && is_edge(text.back())) text.pop_back();
}

// A place named in the middle of a sentence: "read by gpu:1 from gpu:0" becomes "read by … from …".
std::string blank_out(std::string words, const std::string& place) {
    const auto is_inside = [&](std::size_t at) {
        return at < words.size() && std::isalnum(static_cast<unsigned char>(words[at])) != 0;
    };
    for (std::size_t at = words.find(place); at != std::string::npos; at = words.find(place, at)) {
        const bool whole = !(at > 0 && is_inside(at - 1)) && !is_inside(at + place.size());
        if (whole) words.replace(at, place.size(), "…");
        at += whole ? std::string_view("…").size() : place.size();
    }
    return words;
}

// What makes figures cells of one matrix, except the size.
using MatrixKey = std::tuple<std::string, std::string, std::string, std::string, bool>;
// What makes figures points of one curve.
using CurveKey = std::tuple<std::string, std::string, std::string, std::string>;

std::vector<std::string> sorted(const std::set<std::string>& names) {
    std::vector<std::string> list(names.begin(), names.end());
    std::sort(list.begin(), list.end(), stands_before);
    return list;
}

void finish(Matrix& matrix) {
    std::set<std::string> from, to;
    for (const auto& [ends, figure] : matrix.cells) {
        from.insert(ends.first);
        to.insert(ends.second);
    }
    matrix.from = sorted(from);
    matrix.to = sorted(to);
}

// Keeps the order in which keys came first.
template <typename Key, typename Value>
class Ordered {
public:
    Value& operator[](const Key& key) {
        const auto [at, is_new] = index_.try_emplace(key, values_.size());
        if (is_new) values_.emplace_back();
        return values_[at->second];
    }
    std::vector<Value>& values() { return values_; }

private:
    std::map<Key, std::size_t> index_;
    std::vector<Value> values_;
};

std::vector<std::vector<Matrix>> matrices_of(const CaseResult& result, std::set<const Figure*>& placed) {
    Ordered<MatrixKey, std::map<Bytes, Matrix>> kinds;
    for (const Figure& figure : result.figures) {
        if (figure.from.empty() || figure.to.empty()) continue;
        const std::string words = words_without_places(figure);
        Matrix& matrix = kinds[MatrixKey{words, figure.unit, kind_of(figure.from), kind_of(figure.to),
                                         figure.more_is_better}][figure.bytes];
        matrix.words = words;
        matrix.ends = fmt::format("{} -> {}", kind_of(figure.from), kind_of(figure.to));
        matrix.unit = figure.unit;
        matrix.bytes = figure.bytes;
        matrix.cells.try_emplace({figure.from, figure.to},
                                 &figure);  // a second one of the same ends: the rest
    }
    std::vector<std::vector<Matrix>> found;
    for (auto& sizes : kinds.values()) {
        std::vector<Matrix> list;
        for (auto at = sizes.rbegin(); at != sizes.rend(); ++at) {
            Matrix& matrix = at->second;
            if (matrix.cells.size() < 2) continue;
            finish(matrix);
            for (const auto& cell : matrix.cells) placed.insert(cell.second);
            list.push_back(std::move(matrix));
        }
        if (!list.empty()) found.push_back(std::move(list));
    }
    return found;
}

struct Line {
    std::map<Bytes, const Figure*> by_size;

    const Figure& first() const { return *by_size.begin()->second; }
    std::vector<const Figure*> points() const {
        std::vector<const Figure*> list;
        for (const auto& point : by_size) list.push_back(point.second);
        return list;
    }
    std::size_t drawn() const { return 1 + peer_curves(points()).size(); }
};

Curve curve_of(const Line& line, std::string name) {
    return {std::move(name), line.points()};
}

// The lines between the same ends share a chart while they can be told apart.
void add_charts(const std::vector<Line>& lines, std::vector<Chart>& charts) {
    std::size_t drawn = 0;
    for (const Line& line : lines) drawn += line.drawn();
    if (lines.size() == 1 || drawn > max_lines) {
        for (const Line& line : lines) charts.push_back({line.first().what, {curve_of(line, "")}});
        return;
    }
    const Figure& first = lines.front().first();
    Chart chart;
    chart.title = first.from.empty() && first.to.empty() ? "" : fmt::format("{} -> {}", first.from, first.to);
    for (const Line& line : lines) {
        const std::string words = words_without_places(line.first());
        chart.curves.push_back(curve_of(line, words.empty() ? line.first().what : words));
    }
    charts.push_back(std::move(chart));
}

std::vector<ChartRow> charts_of(const CaseResult& result, std::set<const Figure*>& placed) {
    Ordered<CurveKey, Line> lines;
    for (const Figure& figure : result.figures)
        if (figure.bytes > 0)
            lines[CurveKey{figure.what, figure.unit, figure.from, figure.to}].by_size.try_emplace(
                figure.bytes, &figure);
    Ordered<std::string, Ordered<std::pair<std::string, std::string>, std::vector<Line>>> units;
    std::vector<std::string> order;
    for (const Line& line : lines.values()) {
        if (line.by_size.size() < 2) continue;
        for (const auto& point : line.by_size) placed.insert(point.second);
        const Figure& first = line.first();
        if (std::find(order.begin(), order.end(), first.unit) == order.end()) order.push_back(first.unit);
        units[first.unit][{first.from, first.to}].push_back(line);
    }
    std::vector<ChartRow> rows;
    for (const std::string& unit : order) {
        ChartRow row;
        row.unit = unit;
        for (const std::vector<Line>& same_ends : units[unit].values()) add_charts(same_ends, row.charts);
        rows.push_back(std::move(row));
    }
    return rows;
}

bool is_digit(char one) {
    return one >= '0' && one <= '9';
}

// "memcpy, 16 threads" as {"memcpy, ", "16", " threads"}: words and numbers in turns, beginning with words.
std::vector<std::string> parts_of(const std::string& name) {
    std::vector<std::string> parts(1);
    for (const char one : name) {
        if (is_digit(one) != (parts.size() % 2 == 0)) parts.emplace_back();
        parts.back() += one;
    }
    return parts;
}

std::string words_of(const std::string& name) {
    std::string words;
    const std::vector<std::string> parts = parts_of(name);
    for (std::size_t i = 0; i < parts.size(); ++i) words += i % 2 == 0 ? parts[i] : "#";
    return words;
}

// Whether no point has two peers whose names differ only in numbers.
bool words_tell_apart(const std::vector<const Figure*>& points) {
    for (const Figure* figure : points) {
        std::set<std::string> seen;
        for (const Peer& peer : figure->peers)
            if (!seen.insert(words_of(peer.name)).second) return false;
    }
    return true;
}

}  // namespace

std::vector<std::vector<std::string>> peer_curves(const std::vector<const Figure*>& points) {
    const bool by_words = words_tell_apart(points);
    Ordered<std::string, std::vector<std::string>> curves;
    for (const Figure* figure : points)
        for (const Peer& peer : figure->peers) {
            std::vector<std::string>& names = curves[by_words ? words_of(peer.name) : peer.name];
            if (std::find(names.begin(), names.end(), peer.name) == names.end()) names.push_back(peer.name);
        }
    return curves.values();
}

std::string one_name(const std::vector<std::string>& names) {
    std::string joined;
    std::vector<std::vector<std::string>> parts;
    for (const std::string& name : names) {
        joined.append(joined.empty() ? "" : "; ").append(name);
        if (words_of(name) == words_of(names.front())) parts.push_back(parts_of(name));
    }
    if (parts.size() != names.size() || names.empty()) return joined;
    std::string text;
    for (std::size_t i = 0; i < parts.front().size(); ++i) {
        std::set<std::string> values;
        for (const auto& name : parts) values.insert(name[i]);
        const std::vector<std::string> in_order = sorted(values);
        text += in_order.front();
        if (in_order.size() > 1) text.append(" .. ").append(in_order.back());
    }
    return text;
}

Groups group(const CaseResult& result) {
    Groups groups;
    std::set<const Figure*> placed;
    groups.matrices = matrices_of(result, placed);
    groups.charts = charts_of(result, placed);
    for (const Figure& figure : result.figures)
        if (placed.count(&figure) == 0) groups.rest.push_back(&figure);
    return groups;
}

std::string words_without_places(const Figure& figure) {
    std::string words = figure.what;
    if (figure.from.empty() || figure.to.empty()) return words;
    for (const char* arrow : {" -> ", " <-> ", " to ", " and "}) {
        const std::string ends = figure.from + arrow + figure.to;
        const std::size_t at = words.find(ends);
        if (at == std::string::npos) continue;
        cut(words, at, ends.size());
        return words;
    }
    return blank_out(blank_out(words, figure.from), figure.to);
}

bool stands_before(const std::string& a, const std::string& b) {
    std::size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
        if (is_digit(a[i]) && is_digit(b[j])) {
            const auto number_at = [&](const std::string& text, std::size_t& at) {
                while (at + 1 < text.size() && text[at] == '0' && is_digit(text[at + 1])) ++at;
                const std::size_t begin = at;
                while (at < text.size() && is_digit(text[at])) ++at;
                return text.substr(begin, at - begin);
            };
            const std::string left = number_at(a, i), right = number_at(b, j);
            if (left.size() != right.size()) return left.size() < right.size();
            if (left != right) return left < right;
            continue;
        }
        if (a[i] != b[j]) return a[i] < b[j];
        ++i, ++j;
    }
    return a.size() - i < b.size() - j || (a.size() - i == b.size() - j && a < b);
}

}  // namespace sidestep::bench::html
