#include "backends/cufile/proof.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

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

}  // namespace

Counts counts_of(const std::vector<driver::CufileGpuCounts>& all, const std::array<unsigned char, 16>& uuid,
                 bool write) {
    for (const driver::CufileGpuCounts& gpu : all)
        if (gpu.uuid == uuid) return write ? gpu.write : gpu.read;
    return {};
}

std::uint64_t unproven_requests(const Account& account) {
    const std::uint64_t uncounted =
        account.all_requests > account.direct ? account.all_requests - account.direct : 0;
    return std::min(account.requests, std::max(account.posix, uncounted));
}

Bytes unproven_bytes(const Account& account) {
    return std::min(account.bytes, unproven_requests(account) * account.largest);
}

Result<Counts> settled_counts(const driver::Cufile& cufile, const DirectGpu& gpu, bool write,
                              const std::function<bool(const Counts&)>& settled) {
    for (int looks = 20;;) {
        SIDESTEP_TRY(const auto all, cufile.gpu_counts());
        const Counts counts = counts_of(all, gpu.uuid(), write);
        if (settled(counts) || --looks == 0) return counts;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::optional<std::string> what_a_trial_lacks(const Counts& before, const Counts& after) {
    const std::uint64_t posix = after.posix - before.posix;
    if (posix != 0)
        return fmt::format(
            "cuFile moved a block of it through host memory (compatibility mode), as its counter of "
            "POSIX operations shows, which rose by {}",
            posix);
    if (after.direct == before.direct)
        return std::string("cuFile moved a block of it, and counted it neither as P2PDMA nor as nvidia-fs");
    return std::nullopt;
}

Support Prover::prove(const std::string& path, int gpu, bool write) {
    std::string below = path;
    if (write) {
        const auto target = driver::follow_links(path);
        if (!target) return Support::no(target.error().message);
        below = driver::split_path(*target).folder;
    }
    const auto proven = Support::yes("proven by cuFile's counters");
    const auto device = device_of(below);
    if (!device) return Support::no(device.error().message);
    const Key key{*device, gpu, write};
    if (const std::lock_guard lock(mutex_); proven_.count(key) != 0) return proven;
    const auto opened = gpus_.open(gpu);
    if (!opened) return Support::no(opened.error().message, opened.error().hint);
    const std::lock_guard taking_turns(trial_);
    const auto trial = write ? try_write(below, **opened) : try_read(below, **opened);
    if (!trial) return Support::no(trial.error().message, trial.error().hint);
    const std::lock_guard lock(mutex_);
    proven_.insert(key);
    return proven;
}

Result<void> Prover::try_read(const std::string& path, DirectGpu& gpu) {
    SIDESTEP_TRY(const driver::Fd plain, driver::open_file(path, O_RDONLY));
    SIDESTEP_TRY(const driver::Fd direct, driver::open_direct(plain, path));
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
    SIDESTEP_TRY(const driver::Fd direct, driver::open_direct(file.fd(), folder));
    SIDESTEP_CHECK(count(gpu, true, direct));
    return same_bytes(gpu, file.fd(), folder);
}

// One request of one block, and what cuFile counted for it.
Result<void> Prover::count(DirectGpu& gpu, bool write, const driver::Fd& fd) {
    SIDESTEP_TRY(const auto handle, driver::CufileHandle::create(cufile_, fd));
    SIDESTEP_TRY(const Counts before,
                 settled_counts(*cufile_, gpu, write, [](const Counts&) { return true; }));
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
    SIDESTEP_TRY(const Counts after, settled_counts(*cufile_, gpu, write, [&before](const Counts& now) {
                     return now.posix != before.posix || !what_a_trial_lacks(before, now);
                 }));
    const auto lacks = what_a_trial_lacks(before, after);
    return lacks ? no(*lacks, "see cufile.log, and sidestep doctor on GPUDirect Storage") : Result<void>();
}

Result<void> Prover::same_bytes(DirectGpu& gpu, const driver::Fd& fd, const std::string& path) {
    std::array<char, block> seen{};
    SIDESTEP_CHECK(gpu.to_host(seen.data(), gpu.scratch(), seen.size()));
    std::array<char, block> really{};
    SIDESTEP_CHECK(driver::read_range(fd, 0, really.data(), really.size(), path));
    if (really == seen) return {};
    return no(fmt::format("a block that cuFile moved is not the one in the file ({})", path));
}

}  // namespace sidestep::backends::cufile
