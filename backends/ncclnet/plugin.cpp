#include "backends/ncclnet/plugin.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "backend/network.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {
namespace {

// The start of one plugin, by a thread that may never come back.
struct Start {
    std::mutex mutex;  // guards what follows
    std::condition_variable over;
    std::optional<Result<Plugin>> outcome;

    // The first that is said counts.
    Result<Plugin> settle(Result<Plugin> answer) {
        const std::lock_guard lock(mutex);
        if (!outcome) outcome = std::move(answer);
        over.notify_all();
        return *outcome;
    }
};

// The quickest that can be used, in the plugin's order: the other machine's plugin most likely has the same one.
Result<std::vector<driver::NcclNetDevice>> choose_devices(const driver::NcclNet& net) {
    SIDESTEP_TRY(auto devices, net.devices());
    const std::size_t all = devices.size();
    std::erase_if(devices, [](const driver::NcclNetDevice& one) {
        return (one.memory & driver::nccl_net::host_memory) == 0 || one.most < backend::max_push;
    });
    int best = 0;
    for (const auto& one : devices) best = std::max(best, one.speed);
    std::erase_if(devices, [&](const driver::NcclNetDevice& one) { return one.speed < best; });
    if (!devices.empty()) return devices;
    return Error{ErrorCode::unsupported,
                 fmt::format("the network plugin {} has no device for host memory, of {}", net.name(), all),
                 net.library(), "see what the plugin says with SIDESTEP_LOG=debug"};
}

Result<Plugin> start(const std::vector<std::string>& libraries) {
    Plugin plugin;
    SIDESTEP_TRY(plugin.net, driver::NcclNet::load(libraries));
    SIDESTEP_CHECK(plugin.net->init());
    SIDESTEP_TRY(plugin.devices, choose_devices(*plugin.net));
    return plugin;
}

// Never destroyed: threads that hang use it to the end of the process.
std::shared_ptr<Start> start_of(const std::string& key, bool& is_new) {
    static auto* const mutex = new std::mutex;
    static auto* const all = new std::map<std::string, std::shared_ptr<Start>>;
    const std::lock_guard lock(*mutex);
    auto& start = (*all)[key];
    is_new = start == nullptr;
    if (is_new) start = std::make_shared<Start>();
    return start;
}

}  // namespace

std::vector<std::string> plugin_libraries(const std::string& name) {
    if (!name.empty()) return driver::nccl_net_libraries(name);
    const char* const set = std::getenv("NCCL_NET_PLUGIN");
    std::string one = set != nullptr ? set : "";
    // NCCL takes several, and "none".
    one = one.substr(0, one.find(','));
    return driver::nccl_net_libraries(one == "none" ? "" : one);
}

Result<Plugin> start_plugin(const Options& options) {
    const auto libraries = plugin_libraries(options.plugin);
    bool is_new = false;
    const auto one = start_of(fmt::format("{}", fmt::join(libraries, ":")), is_new);
    if (is_new) {
        auto thread = base::start_thread(
            [one, libraries] { static_cast<void>(one->settle(start(libraries))); }, "ncclnet");
        if (!thread) return one->settle(thread.error());
        thread->detach();
    }
    {
        std::unique_lock lock(one->mutex);
        if (one->over.wait_for(lock, options.patience.start, [&] { return one->outcome.has_value(); }))
            return *one->outcome;
    }
    const auto seconds = std::chrono::duration<double>(options.patience.start).count();
    return one->settle(Error{ErrorCode::timed_out,
                             fmt::format("the network plugin {} has not started within {} s",
                                         fmt::join(libraries, " or "), seconds),
                             "ncclnet",
                             "see what it says with SIDESTEP_LOG=debug; it is not tried again here"});
}

}  // namespace sidestep::backends::ncclnet
