#include "bench/collective/launch.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/child.hpp"

namespace sidestep::bench::collective {
namespace {

using Json = nlohmann::json;

constexpr const char* self = "/proc/self/exe";
constexpr std::chrono::hours longest{1};
// What ranks have after the first failure: they hear of it from their group, if there is one yet.
constexpr std::chrono::seconds patience{2};
// What a rank says beside its lines, which are taken as they come.
constexpr std::size_t max_output = std::size_t{64} << 20;
constexpr std::chrono::milliseconds between_looks{20};

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
    // Waits for all, unless they are to stop; whether they were.
    bool wait(const std::function<bool()>& stop) {
        std::unique_lock lock(mutex_);
        bool stopped = false;
        while (!none_left_.wait_for(lock, between_looks, [this] { return left_ == 0; })) {
            if (stopped || !stop || !stop()) continue;
            stopped = true;
            lock.unlock();
            stop_.request_stop();
            lock.lock();
        }
        return stopped;
    }
    std::optional<std::size_t> first_failed() const { return failed_; }

private:
    std::stop_source stop_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable none_left_;
    std::size_t left_;
    std::optional<std::size_t> failed_;
};

// The rows of all ranks as they come: a merged one is there once every rank has it.
class Rows {
public:
    Rows(std::size_t ranks, const RowSink& sink) : waiting_(ranks), sink_(sink) {}

    void add(std::size_t rank, std::vector<Line> lines) {
        const std::lock_guard lock(mutex_);
        waiting_[rank].push_back(std::move(lines));
        if (std::any_of(waiting_.begin(), waiting_.end(), [](const auto& rows) { return rows.empty(); }))
            return;
        std::vector<std::vector<Line>> row;
        for (auto& rows : waiting_) {
            row.push_back(std::move(rows.front()));
            rows.pop_front();
        }
        auto merged = merge(row);
        if (!merged) {
            different_ = merged.error();
            return;
        }
        if (sink_) sink_(*merged);
        std::move(merged->begin(), merged->end(), std::back_inserter(lines_));
    }
    // Once nobody adds any more.
    Result<std::vector<Line>> all() {
        if (different_) return *different_;
        return std::move(lines_);
    }

private:
    std::mutex mutex_;  // guards what follows
    std::vector<std::deque<std::vector<Line>>> waiting_;
    std::vector<Line> lines_;
    std::optional<Error> different_;
    const RowSink& sink_;
};

using Notes = Result<std::vector<std::string>>;

// What a run found that was not stopped, or else up to then: the failure of rank `failed`, or of the lowest one that has
// any; else its rows.
Result<Found> found_of(Rows& rows, const std::vector<Notes>& ranks, bool stopped,
                       std::optional<std::size_t> failed = {}) {
    for (std::size_t rank = 0; rank < ranks.size() && !failed; ++rank)
        if (!ranks[rank]) failed = rank;
    if (failed && !stopped) {
        Error error = ranks[*failed].error();
        error.message = fmt::format("rank {}: {}", *failed, error.message);
        return error;
    }
    SIDESTEP_TRY(auto lines, rows.all());
    return Found{std::move(lines), failed ? std::vector<std::string>{} : *ranks.front()};
}

// Takes what the process of a rank prints, until it has ended.
Notes listen(Child& child, const std::stop_token& stop, const RowSink& row) {
    Notes notes = std::vector<std::string>{};
    const auto take = [&](const std::string& line) {
        auto found = Found::from_json(line);
        if (!found) {
            notes = found.error();
            return;
        }
        if (notes) notes->insert(notes->end(), found->notes.begin(), found->notes.end());
        if (!found->lines.empty()) row(std::move(found->lines));
    };
    const auto ended = child.wait(longest, max_output, stop, take);
    if (!ended) return ended.error();
    if (ended->code != 0)
        return Error{ErrorCode::io_error,
                     fmt::format("its process ended with {}: {}", ended->code, last_words(*ended)),
                     "bench collective",
                     {}};
    return notes;
}

}  // namespace

std::string no_processes() {
    std::error_code error;
    const auto program = std::filesystem::read_symlink(self, error).filename();
    if (!error && program == "sidestep") return {};
    return "runs in the command `sidestep` alone, which starts itself as a child";
}

Result<Found> run_in_processes(const std::string& machine, const std::vector<int>& gpus, const Plan& plan,
                               const Watch& watch) {
    const auto id = GroupId::create();
    if (!id) return id.error();
    std::vector<Child> children;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
        const Json job = {{"id", id->to_string()},
                          {"rank", rank},
                          {"ranks", gpus.size()},
                          {"gpu", gpus[rank]},
                          {"plan", plan.to_json()}};
        SIDESTEP_TRY(auto child,
                     Child::start(self, {"--machine", machine, "bench", "collective", "--job", job.dump()}));
        children.push_back(std::move(child));
    }
    std::vector<Notes> notes(gpus.size(), std::vector<std::string>{});
    Rows rows(gpus.size(), watch.row);
    Endings endings(gpus.size());
    std::vector<std::thread> readers;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
        readers.emplace_back([&, rank] {
            notes[rank] = listen(children[rank], endings.stop(),
                                 [&](std::vector<Line> lines) { rows.add(rank, std::move(lines)); });
            endings.ended(rank, notes[rank].ok());
        });
    const bool stopped = endings.wait(watch.stop);
    for (std::thread& reader : readers) reader.join();
    return found_of(rows, notes, stopped, endings.first_failed());
}

Result<Found> run_in_threads(const Context& context, const std::vector<int>& gpus, const Plan& plan,
                             const Watch& watch) {
    std::vector<Place> places;
    for (const int gpu : gpus) places.push_back(Place::gpu(gpu));
    SIDESTEP_TRY(auto groups, Group::local(context, places));
    std::vector<Notes> notes(gpus.size(), std::vector<std::string>{});
    Rows rows(gpus.size(), watch.row);
    Endings endings(gpus.size());
    const std::stop_callback abort(endings.stop(), [&] {
        for (Group& group : groups) group.abort("stopped");
    });
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank)
        threads.emplace_back([&, rank] {
            notes[rank] = measure(context, groups[rank], gpus[rank], plan,
                                  [&](std::vector<Line> lines) { rows.add(rank, std::move(lines)); });
            // The others would wait for it.
            if (!notes[rank]) groups[rank].abort(notes[rank].error().message);
            endings.ended(rank, notes[rank].ok());
        });
    const bool stopped = endings.wait(watch.stop);
    for (std::thread& thread : threads) thread.join();
    return found_of(rows, notes, stopped);
}

Result<void> run_job(const Context& context, const std::string& text,
                     const std::function<Result<void>(const std::string&)>& print) {
    const Json job = Json::parse(text, nullptr, false);
    const Error wrong{ErrorCode::invalid_argument, "this is not a job of a benchmark", "--job", {}};
    if (!job.is_object() || !job.contains("plan") || !job["plan"].is_string() || !job.contains("id") ||
        !job["id"].is_string())
        return wrong;
    SIDESTEP_TRY(const auto plan, Plan::from_json(job["plan"].get<std::string>()));
    SIDESTEP_TRY(const auto id, GroupId::parse(job["id"].get<std::string>()));
    const auto number = [&job](const char* name) {
        const auto found = job.find(name);
        return found != job.end() && found->is_number_integer() ? found->get<int>() : -1;
    };
    const int gpu = number("gpu");
    if (gpu < 0 || number("rank") < 0 || number("ranks") < 1) return wrong;
    SIDESTEP_TRY(auto group, Group::join(context, {id, number("rank"), number("ranks"), Place::gpu(gpu)}));
    Result<void> printed;
    const auto say = [&](const Found& found) {
        if (printed) printed = print(found.to_json());
    };
    auto notes = measure(context, group, gpu, plan, [&](std::vector<Line> lines) {
        say({std::move(lines), {}});
    });
    if (notes) say({{}, std::move(*notes)});
    if (notes) return printed;
    // The others would wait for this rank.
    group.abort(notes.error().message);
    return notes.error();
}

}  // namespace sidestep::bench::collective
