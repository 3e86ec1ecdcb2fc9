// Options: structs of the library with the words of the command line, and seconds.
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <pybind11/stl.h>

#include <sidestep/load.hpp>
#include <sidestep/memory_kind.hpp>
#include <sidestep/options.hpp>
#include <sidestep/publication.hpp>
#include <sidestep/save.hpp>

#include "failure.hpp"
#include "values.hpp"

namespace sidestep::python {
namespace {

template <typename E, std::size_t n>
using Words = std::array<std::pair<const char*, E>, n>;

constexpr Words<Require, 3> require_words{
    {{"any", Require::any}, {"direct", Require::direct}, {"host", Require::host}}};
constexpr Words<Prefer, 3> prefer_words{
    {{"automatic", Prefer::automatic}, {"copy-engine", Prefer::copy_engine}, {"kernel", Prefer::kernel}}};
constexpr Words<PageCache, 3> page_cache_words{
    {{"automatic", PageCache::automatic}, {"use", PageCache::use}, {"bypass", PageCache::bypass}}};
constexpr Words<Layout, 3> layout_words{
    {{"replicate", Layout::replicate}, {"tensor", Layout::by_tensor}, {"axis", Layout::by_axis}}};

template <typename E, std::size_t n>
E parse(const Words<E, n>& words, const std::string& text, const char* name) {
    std::string known;
    for (const auto& [word, meaning] : words) {
        if (text == word) return meaning;
        known += (known.empty() ? "" : ", ") + std::string(word);
    }
    raise({ErrorCode::invalid_argument, "there is no '" + text + "'", name, "the words are " + known});
}

template <typename E, std::size_t n>
std::string print(const Words<E, n>& words, E asked) {
    for (const auto& [word, meaning] : words)
        if (meaning == asked) return word;
    return {};
}

// A property that is a word in Python and an enumerator here.
template <typename Class, typename Struct, typename E, std::size_t n>
void word(Class& bound, const char* name, E Struct::*member, const Words<E, n>& words) {
    bound.def_property(
        name, [member, &words](const Struct& options) { return print(words, options.*member); },
        [member, &words, name](Struct& options, const std::string& text) {
            options.*member = parse(words, text, name);
        });
}

// A property in seconds.
template <typename Class, typename Struct>
void seconds(Class& bound, const char* name, std::chrono::milliseconds Struct::*member) {
    bound.def_property(
        name,
        [member](const Struct& options) { return std::chrono::duration<double>(options.*member).count(); },
        [member, name](Struct& options, double value) { options.*member = milliseconds_of(name, value); });
}

// What loads, saves and copies have alike.
template <typename Struct, typename Class>
void define_limits(Class& bound) {
    word(bound, "page_cache", &Struct::page_cache, page_cache_words);
    seconds(bound, "deadline", &Struct::deadline);
    seconds(bound, "stall_limit", &Struct::stall_limit);
    bound.def_readwrite("max_staging", &Struct::max_staging)
        .def_readwrite("chunk", &Struct::chunk)
        .def_readwrite("verify", &Struct::verify);
}

}  // namespace

std::chrono::milliseconds milliseconds_of(const char* option, double seconds) {
    const double milliseconds = std::ceil(seconds * 1000);
    // Written so that a NaN fails too. What fits into 63 bits is the library's to judge.
    if (!(seconds >= 0 && milliseconds < 0x1p63))
        raise(refused_option(option, std::string(py::str(py::float_(seconds))) + " s"));
    return std::chrono::milliseconds(static_cast<std::int64_t>(milliseconds));
}

void define_options(py::module_& module) {
    // Of a value that no number of the library holds.
    module.def("refuse_option", [](const std::string& option, const std::string& value) {
        raise(refused_option(option, value));
    });

    auto copy = py::class_<CopyOptions>(module, "CopyOptions");
    copy.def(py::init<>())
        .def_readwrite("lanes", &CopyOptions::lanes)
        .def_readwrite("sync_file", &CopyOptions::sync_file);
    word(copy, "require", &CopyOptions::require, require_words);
    word(copy, "prefer", &CopyOptions::prefer, prefer_words);
    define_limits<CopyOptions>(copy);

    auto checkpoint = py::class_<CheckpointOptions>(module, "CheckpointOptions");
    checkpoint.def(py::init<>()).def_readwrite("lenient", &CheckpointOptions::lenient);
    seconds(checkpoint, "deadline", &CheckpointOptions::deadline);

    auto publish = py::class_<PublishOptions>(module, "PublishOptions");
    publish.def(py::init<>());
    seconds(publish, "deadline", &PublishOptions::deadline);

    auto load = py::class_<LoadOptions>(module, "LoadOptions");
    load.def(py::init<>()).def_readwrite("manifest", &LoadOptions::manifest);
    load.def_property(
        "to",
        [](const LoadOptions& options) {
            std::vector<std::string> places;
            for (const Place& place : options.to) places.push_back(place.to_string());
            return places;
        },
        [](LoadOptions& options, const std::vector<std::string>& places) {
            options.to.clear();
            for (const std::string& place : places) options.to.push_back(value(Place::parse(place)));
        });
    load.def_property(
        "rules",
        [](const LoadOptions& options) {
            std::vector<std::pair<std::string, int>> rules;
            for (const ShardRule& rule : options.rules) rules.emplace_back(rule.pattern, rule.axis);
            return rules;
        },
        [](LoadOptions& options, const std::vector<std::pair<std::string, int>>& rules) {
            options.rules.clear();
            for (const auto& [pattern, axis] : rules) options.rules.push_back({pattern, axis});
        });
    load.def("read_rules", [](LoadOptions& options, const std::string& path) {
        options.rules = value(read_shard_rules(path));
    });
    word(load, "layout", &LoadOptions::layout, layout_words);
    define_limits<LoadOptions>(load);

    auto save = py::class_<SaveOptions>(module, "SaveOptions");
    save.def(py::init<>())
        .def_readwrite("metadata", &SaveOptions::metadata)
        .def_readwrite("shard_bytes", &SaveOptions::shard_bytes)
        .def_readwrite("manifest", &SaveOptions::manifest)
        .def_readwrite("sync_file", &SaveOptions::sync_file)
        .def_readwrite("sync_replaced", &SaveOptions::sync_replaced);
    define_limits<SaveOptions>(save);
}

}  // namespace sidestep::python
