#include "backends/cufile/proof.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "backends/cufile/accounts.hpp"
#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/replaced_file.hpp"

namespace sidestep::backends::cufile {
namespace {

using backend::Support;

Error no(std::string message, std::string hint = {}) {
    return Error{ErrorCode::unsupported, std::move(message), {}, std::move(hint)};
}

// The device below a file, or the block device that it is.
Result<std::uint64_t> device_of(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return no(fmt::format("{} does not exist", path));
    return S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
}

// Whether the bytes that a trial moved are the file's.
bool equal_block(const driver::Fd& fd, const std::array<char, block>& seen) {
    std::array<char, block> really{};
    return ::pread(fd.get(), really.data(), really.size(), 0) == static_cast<ssize_t>(block) &&
           really == seen;
}

}  // namespace

bool Prover::known(const Key& key) {
    const std::lock_guard lock(mutex_);
    return proven_.count(key) != 0;
}

Support Prover::remember(const Key& key, const Result<void>& trial) {
    if (!trial) return Support::no(trial.error().message, trial.error().hint);
    const std::lock_guard lock(mutex_);
    proven_.insert(key);
    return Support::yes("proven by cuFile's counters");
}

Support Prover::reads(const std::string& path, int gpu) {
    const auto device = device_of(path);
    if (!device) return Support::no(device.error().message);
    const Key key{*device, gpu, false};
    if (known(key)) return Support::yes("proven by cuFile's counters");
    const auto opened = gpus_.open(gpu);
    if (!opened) return Support::no(opened.error().message, opened.error().hint);
    const std::lock_guard trial(trial_);
    return remember(key, try_read(path, **opened));
}

Support Prover::writes(const std::string& path, int gpu) {
    const auto target = driver::follow_links(path);
    if (!target) return Support::no(target.error().message);
    const std::string folder = driver::split_path(*target).folder;
    const auto device = device_of(folder);
    if (!device) return Support::no(device.error().message);
    const Key key{*device, gpu, true};
    if (known(key)) return Support::yes("proven by cuFile's counters");
    const auto opened = gpus_.open(gpu);
    if (!opened) return Support::no(opened.error().message, opened.error().hint);
    const std::lock_guard trial(trial_);
    return remember(key, try_write(folder, **opened));
}

Result<void> Prover::try_read(const std::string& path, DirectGpu& gpu) {
    SIDESTEP_TRY(const driver::Fd plain, driver::open_file(path, O_RDONLY));
    SIDESTEP_TRY(const driver::Fd direct, driver::open_direct(plain, O_RDONLY, path));
    SIDESTEP_CHECK(count(gpu, false, direct));
    return same_bytes(gpu, plain, path);
}

Result<void> Prover::try_write(const std::string& folder, DirectGpu& gpu) {
    // With a name: cuFile refuses files that were opened with O_TMPFILE (5019).
    SIDESTEP_TRY(const auto file, driver::ReplacedFile::begin(folder + "/sidestep-trial", false));
    SIDESTEP_CHECK(driver::reserve_space(file.fd(), 0, block, false, folder));
    std::array<char, block> pattern{};
    for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<char>(i * 131 >> 3);
    SIDESTEP_CHECK(gpu.to_gpu(gpu.scratch(), pattern.data(), pattern.size()));
    SIDESTEP_TRY(const driver::Fd direct, driver::open_direct(file.fd(), O_RDWR, folder));
    SIDESTEP_CHECK(count(gpu, true, direct));
    return same_bytes(gpu, file.fd(), folder);
}

// One request of one block, and what cuFile counted for it.
Result<void> Prover::count(DirectGpu& gpu, bool write, const driver::Fd& fd) {
    SIDESTEP_TRY(const auto handle, driver::CufileHandle::create(cufile_, fd));
    SIDESTEP_TRY(const auto counts_before, cufile_->gpu_counts());
    const Counts before = counts_of(counts_before, gpu.uuid(), write);
    Ledger& ledger = gpu.ledger(write);
    ++ledger.begun;
    auto moved = [&] {
        const driver::ScopedCudaContext current(gpu.context());
        return write ? cufile_->write(handle.get(), gpu.scratch(), block, 0, 0)
                     : cufile_->read(handle.get(), gpu.scratch(), block, 0, 0);
    }();
    ++ledger.ended;
    if (!moved) return no(fmt::format("a trial failed: {}", moved.error().message), moved.error().hint);
    if (*moved != block) return no(fmt::format("of a block cuFile moved {} bytes only", *moved));
    // Nothing says that the counters are up to date when the call returns.
    std::optional<std::string> lacks;
    for (int look = 0; look < 20; ++look) {
        if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        SIDESTEP_TRY(const auto counts_after, cufile_->gpu_counts());
        const Counts after = counts_of(counts_after, gpu.uuid(), write);
        lacks = what_a_trial_lacks(before, after);
        if (!lacks) return {};
        if (after.posix != before.posix) break;
    }
    return no(*lacks, "see cufile.log, and sidestep doctor on GPUDirect Storage");
}

Result<void> Prover::same_bytes(DirectGpu& gpu, const driver::Fd& fd, const std::string& path) {
    std::array<char, block> seen{};
    SIDESTEP_CHECK(gpu.to_host(seen.data(), gpu.scratch(), seen.size()));
    if (equal_block(fd, seen)) return {};
    return no(fmt::format("a block that cuFile moved is not the one in the file ({})", path));
}

}  // namespace sidestep::backends::cufile
