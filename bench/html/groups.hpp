// Which figures of a case stand together: as a matrix of places, as curves over size, or as lines of a table.
//
// Pure: plain data that points into the CaseResult it was made of, which has to outlive it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.hpp"

namespace sidestep::bench::html {

// Figures of one unit, size and way to measure, by the places they go from and to.
struct Matrix {
    std::string words;  // what the figures share besides their places: "copy engine"
    std::string ends;   // the kinds of its places: "host -> gpu"
    std::string unit;
    Bytes bytes = 0;
    std::vector<std::string> from, to;  // in the order of people: gpu:2 before gpu:10
    std::map<std::pair<std::string, std::string>, const Figure*> cells;
};

// One thing at several sizes, from the least size to the most. At least two points.
struct Curve {
    std::string name;
    std::vector<const Figure*> points;
};

// Curves over the same axes.
struct Chart {
    std::string title;
    std::vector<Curve> curves;
};

// Charts of one unit, drawn to the same scale.
struct ChartRow {
    std::string unit;
    std::vector<Chart> charts;
};

struct Groups {
    std::vector<std::vector<Matrix>> matrices;  // one list a kind of matrix, the greatest size first
    std::vector<ChartRow> charts;
    std::vector<const Figure*> rest;  // what is in neither, in the order of the report
};

// Every figure of the case is in a matrix, in a chart, in both, or in the rest.
Groups group(const CaseResult& result);

// "gpu:0 -> gpu:1, copy engine" without its places: "copy engine".
std::string words_without_places(const Figure& figure);

// The names of peers that make one curve each. Names that differ only in numbers make one together, such as
// "memcpy, 2 threads" at one size and "memcpy, 16 threads" at another, unless one point has several of them.
std::vector<std::vector<std::string>> peer_curves(const std::vector<const Figure*>& points);

// One name for several that differ only in numbers: "memcpy, 2 .. 16 threads". Others are joined by "; ".
std::string one_name(const std::vector<std::string>& names);

// Whether one name stands before another, with numbers in it compared as numbers.
bool stands_before(const std::string& a, const std::string& b);

}  // namespace sidestep::bench::html
