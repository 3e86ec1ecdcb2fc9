// An object of an S3 store to host memory and a GPU, beside the program curl.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/case.hpp"
#include "bench/child.hpp"
#include "bench/leftovers.hpp"

namespace sidestep::bench {
namespace {

// What the library asks for at once.
constexpr Bytes range_bytes = 8_MiB;
constexpr int connections = 32;
constexpr std::chrono::minutes limit{10};

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
}

std::string first_of(std::initializer_list<const char*> names, std::string otherwise) {
    for (const char* name : names)
        if (std::string value = variable(name); !value.empty()) return value;
    return otherwise;
}

// curl knows neither Amazon's profiles nor its files.
std::string no_curl(const Context&) {
    if (find_program("curl").empty()) return "curl is not on PATH";
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"})
        if (variable(name).empty())
            return fmt::format("{} is not set, and curl reads no other credentials", name);
    return {};
}

std::string no_object(const Options& options) {
    return options.object.empty() ? "it needs an object: --object s3://BUCKET/KEY" : "";
}

std::string escaped(const std::string& key) {
    std::string text;
    for (const unsigned char letter : key)
        text += std::isalnum(letter) != 0 ||
                        std::string_view("-_.~/").find(static_cast<char>(letter)) != std::string_view::npos
                    ? std::string(1, static_cast<char>(letter))
                    : fmt::format("%{:02X}", letter);
    return text;
}

// The lines of a file for `curl --config` about one part of an object.
std::string request(const std::string& object, Bytes begin, Bytes end) {
    const std::string region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"}, "us-east-1");
    const std::string endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"},
                                          fmt::format("https://s3.{}.amazonaws.com", region));
    std::string text = fmt::format(
        "url = \"{}/{}\"\nrange = \"{}-{}\"\noutput = \"/dev/null\"\nfail\nuser = \"{}:{}\"\naws-sigv4 = "
        "\"aws:amz:{}:s3\"\n"
        "header = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\nwrite-out = \""
        "%{{size_download}}\\n\"\n",
        endpoint, escaped(object.substr(std::string_view("s3://").size())), begin, end - 1,
        variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), region);
    if (const std::string token = variable("AWS_SESSION_TOKEN"); !token.empty())
        text += fmt::format("header = \"x-amz-security-token: {}\"\n", token);
    return text;
}

// Secrets stand in it, and command lines are seen by all.
Result<ScratchFile> config_file(const Options& options, const std::string& text, int parallel) {
    const auto folder = scratch_folder(options);
    if (!folder) return folder.error();
    ScratchFile file((*folder / fmt::format("sidestep-bench-curl-{}-{}", getpid(), parallel)).string());
    const int made = open(file.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool written =
        made >= 0 && write(made, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    const int number = errno;
    if (made >= 0) ::close(made);
    if (!written)
        return Error{ErrorCode::io_error, std::generic_category().message(number), file.path(),
                     "give a folder with --folder"};
    return file;
}

// With the start of the program: curl's own times leave out how long a part waited for its turn.
Result<double> curl_seconds(const std::vector<std::string>& arguments, Bytes bytes) {
    const auto start = std::chrono::steady_clock::now();
    auto ended = run_program(find_program("curl"), arguments, limit);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!ended) return ended.error();
    std::istringstream lines(ended->output);
    Bytes arrived = 0;
    for (Bytes got = 0; lines >> got;) arrived += got;
    if (ended->code != 0 || arrived != bytes)
        return Error{ErrorCode::io_error,
                     fmt::format("curl ended with {}, and brought {} of {} bytes: {}", ended->code, arrived,
                                 bytes, ended->errors),
                     "curl",
                     {}};
    return seconds;
}

Result<Figure> read_figure(const Context& context, const Options& options, const Buffer& object,
                           const Place& to, const std::vector<Yardstick>& curls) {
    SIDESTEP_TRY(auto target, context.allocate(to, object.size(),
                                               to.is_host() ? MemoryKind::pageable : MemoryKind::automatic));
    SIDESTEP_CHECK(paint(context, target.buffer(), 2));
    Figure blank;
    blank.what = fmt::format("object -> {}", to.to_string());
    blank.from = "object";
    blank.to = to.to_string();
    blank.bytes = object.size();
    blank.unit = "GB/s";
    std::string path;
    auto figure = measure_rate(
        std::move(blank), options, [&] { return timed_copy(context, object, target.buffer(), {}, &path); },
        curls);
    if (!figure) return figure;
    figure->path = path;
    if (!options.verify) return figure;
    CopyOptions compared;
    compared.verify = true;
    SIDESTEP_CHECK(timed_copy(context, object, target.buffer(), compared));
    figure->verified = true;
    return figure;
}

Result<std::vector<Figure>> run_object(const Context& context, const Options& options) {
    SIDESTEP_TRY(const auto place, Place::parse(options.object));
    SIDESTEP_TRY(const auto whole, context.size(Buffer::file(place.path()).on(place.node())));
    std::vector<Place> ends = {Place::host()};
    if (no_gpu(context).empty())
        for (const int gpu : gpus_of(context, options))
            if (ends.size() < 2) ends.push_back(Place::gpu(gpu));
    std::vector<Figure> figures;
    for (Bytes bytes : options.sizes_or({whole})) {
        bytes = std::min(bytes, whole);
        std::string parts;
        for (Bytes at = 0; at < bytes; at += range_bytes)
            parts +=
                (at > 0 ? "next\n" : "") + request(options.object, at, std::min(bytes, at + range_bytes));
        const auto one = config_file(options, request(options.object, 0, bytes), 1),
                   many = config_file(options, parts, connections);
        if (!one) return one.error();
        if (!many) return many.error();
        const std::vector<std::string> alone = {"-sS", "-K", one->path()},
                                       beside = {"-sS",
                                                 "--parallel",
                                                 "--parallel-immediate",
                                                 "--parallel-max",
                                                 std::to_string(connections),
                                                 "-K",
                                                 many->path()};
        const std::vector<Yardstick> curls = {
            {fmt::format("curl, {} connections", connections), [&] { return curl_seconds(beside, bytes); }},
            {"curl, 1 connection", [&] { return curl_seconds(alone, bytes); }}};
        for (const Place& to : ends) {
            if (!options.wants(place, to)) continue;
            SIDESTEP_TRY(auto figure,
                         read_figure(context, options, Buffer::file(place.path(), 0, bytes).on(place.node()),
                                     to, curls));
            figures.push_back(std::move(figure));
        }
    }
    return figures;
}

}  // namespace

std::vector<Case> object_cases() {
    return {{"object", "An object of an S3 store to host memory and a GPU, beside curl", no_curl, run_object,
             no_object}};
}

}  // namespace sidestep::bench
