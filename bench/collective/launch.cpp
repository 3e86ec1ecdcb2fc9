#include "bench/collective/launch.hpp"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/child.hpp"

namespace sidestep::bench::collective {
namespace {

using Json = nlohmann::json;

constexpr const char* self = "/proc/self/exe";
constexpr std::chrono::hours longest{1};
// What ranks have after the first failure: they hear of it from their group, if there is one yet.
constexpr std::chrono::seconds patience{2};
// Of figures: a sample is less than 20 bytes, so these are 13 million of one rank.
constexpr std::size_t max_output = std::size_t{256} << 20;

Error much_output() {
    return Error{ErrorCode::unsupported,
                 fmt::format("a rank had more than {} of figures", format_bytes(max_output)),
                 "bench collective", "measure less at once: fewer sizes, types or --samples"};
}

std::string last_words(const Ended& ended) {
    std::string text = ended.errors.empty() ? ended.output : ended.errors;
    text.erase(text.find_last_not_of(" \n") + 1);
    const std::size_t line = text.find_last_of('\n');
    return line == std::string::npos ? text : text.substr(line + 1);
}

// Ranks as they end. The first failure ends those that still wait for that rank a little later.
class Endings {
public:
    explicit Endings(std::size_t ranks) : left_(ranks) {}

    std::stop_token stop() const { return stop_.get_token(); }
    void ended(std::size_t rank, bool well) {
        std::unique_lock lock(mutex_);
        --left_;
        none_left_.notify_all();
        if (well || failed_) return;
        failed_ = rank;
        none_left_.wait_for(lock, patience, [this] { return left_ == 0; });
        stop_.request_stop();
    }
    std::optional<std::size_t> first_failed() const { return failed_; }

private:
    std::stop_source stop_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable none_left_;
    std::size_t left_;
    std::optional<std::size_t> failed_;
};

// The failure of rank `failed`, or of the lowest one that has any; else all of them merged.
Result<Found> merged(std::vector<Result<Found>>& ranks, std::optional<std::size_t> failed = {}) {
    for (std::size_t rank = 0; rank < ranks.size() && !failed; ++rank)
        if (!ranks[rank]) failed = rank;
    if (failed) {
        Error error = ranks[*failed].error();
        error.message = fmt::format("rank {}: {}", *failed, error.message);
        return error;
    }
    std::vector<std::vector<Line>> lines;
    for (Result<Found>& rank : ranks) lines.push_back(std::move(rank->lines));
    auto all = merge(lines);
    if (!all) return all.error();
    return Found{std::move(*all), ranks.front()->notes};
}

// What the process of a rank prints, once it has ended.
Result<Found> found_by(Child& child, const std::stop_token& stop) {
    const auto ended = child.wait(longest, max_output, stop);
    if (!ended) return ended.error();
    if (ended->code != 0)
        return Error{ErrorCode::io_error,
                     fmt::format("its process ended with {}: {}", ended->code, last_words(*ended)),
                     "bench collective",
                     {}};
    if (ended->output.size() == max_output) return much_output();
    return Found::from_json(ended->output);
}

}  // namespace

std::string no_processes() {
    std::error_code error;
    const auto program = std::filesystem::read_symlink(self, error).filename();
    if (!error && program == "sidestep") return {};
    return "runs in the command `sidestep` alone, which starts itself as a child";
}

Result<Found> run_in_processes(const std::string& machine, const std::vector<int>& gpus, const Plan& plan) {
    const auto id = GroupId::create();
    if (!id) return id.error();
    std::vector<Child> children;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
        const Json job = {{"id", id->to_string()},
                          {"rank", rank},
                          {"ranks", gpus.size()},
                          {"gpu", gpus[rank]},
                          {"plan", plan.to_json()}};
        auto child = Child::start(self, {"--machine", machine, "bench", "collective", "--job", job.dump()});
        if (!child) return child.error();
        children.push_back(std::move(*child));
    }
    std::vector<Result<Found>> found(gpus.size(), Found{});
    Endings endings(gpus.size());
    std::vector<std::thread> readers;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
        readers.emplace_back([&, rank] {
            found[rank] = found_by(children[rank], endings.stop());
            endings.ended(rank, found[rank].ok());
        });
    for (std::thread& reader : readers) reader.join();
    return merged(found, endings.first_failed());
}

Result<Found> run_in_threads(const Context& context, const std::vector<int>& gpus, const Plan& plan) {
    std::vector<Place> places;
    for (const int gpu : gpus) places.push_back(Place::gpu(gpu));
    auto groups = Group::local(context, places);
    if (!groups) return groups.error();
    std::vector<Result<Found>> found(gpus.size(), Found{});
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
        threads.emplace_back([&, rank] {
            found[rank] = measure(context, (*groups)[rank], gpus[rank], plan);
            // The others would wait for it.
            if (!found[rank]) (*groups)[rank].abort(found[rank].error().message);
        });
    for (std::thread& thread : threads) thread.join();
    return merged(found);
}

Result<std::string> run_job(const Context& context, const std::string& text) {
    const Json job = Json::parse(text, nullptr, false);
    const Error wrong{ErrorCode::invalid_argument, "this is not a job of a benchmark", "--job", {}};
    if (!job.is_object() || !job.contains("plan") || !job["plan"].is_string() || !job.contains("id") ||
        !job["id"].is_string())
        return wrong;
    const auto plan = Plan::from_json(job["plan"].get<std::string>());
    if (!plan) return plan.error();
    const auto id = GroupId::parse(job["id"].get<std::string>());
    if (!id) return id.error();
    const auto number = [&job](const char* name) {
        const auto found = job.find(name);
        return found != job.end() && found->is_number_integer() ? found->get<int>() : -1;
    };
    const int gpu = number("gpu");
    if (gpu < 0 || number("rank") < 0 || number("ranks") < 1) return wrong;
    auto group = Group::join(context, {*id, number("rank"), number("ranks"), Place::gpu(gpu)});
    if (!group) return group.error();
    const auto found = measure(context, *group, gpu, *plan);
    if (found) return found->to_json();
    // The others would wait for this rank.
    group->abort(found.error().message);
    return found.error();
}

}  // namespace sidestep::bench::collective
