#include "backends/cufile/cufile_backend.hpp"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "backends/cufile/conditions.hpp"
#include "backends/cufile/file_registration.hpp"
#include "base/kept.hpp"
#include "base/try.hpp"
#include "driver/cufile.hpp"
#include "driver/files.hpp"
#include "topology/peer_rate.hpp"

namespace sidestep::backends::cufile {
namespace {

using backend::Capability;
using backend::Reach;
using backend::Support;

// Of one small request. Not measured here: NVIDIA's guides give 4 KiB reads some tens of microseconds above
// the drive's own time.
constexpr double latency_us = 50;

// The drives' rate is not known, nor the page cache's part: the link of the quickest GPU is all that is sure to bound it.
double quickest_link(const Topology& topology) {
    double max = 0;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        const auto cpu = topology.device(id).kind == DeviceKind::gpu ? topology.cpu_of(id) : std::nullopt;
        const auto path = cpu ? topology.path(*cpu, id, Fabric::any) : std::nullopt;
        if (path && !path->links.empty())
            max = std::max(max, topology::reached_gb_per_s(topology, *cpu, *path, false));
    }
    return max;
}

class CufileBackend final : public backend::Backend {
public:
    explicit CufileBackend(CufileOptions options) : options_(std::move(options)) {}
    ~CufileBackend() override {
        if (opened_ && !opened_->pool.end()) base::keep(std::move(opened_));
    }

    std::string_view name() const override { return "cufile"; }

    Support probe(const Topology& topology) override {
        if (topology.emulated())
            return Support::no("the machine is a model: its GPUs are not in this computer");
        if (options_.off) return Support::no("SIDESTEP_CUFILE=off", "unset SIDESTEP_CUFILE");
        if (topology.gpu_count() == 0) return Support::no("this machine has no GPU");
        const Conditions conditions = read_conditions(driver::MachineFiles(options_.root), topology);
        // What is known to be missing is known without the library, whose opening takes up to 2 seconds.
        if (!conditions.met()) return conditions.refusal();
        const auto loaded = load(topology, conditions);
        return loaded ? *loaded : Support::no(loaded.error().message, loaded.error().hint);
    }

    std::vector<Capability> capabilities() const override {
        // Memory of pools cannot be mapped for other devices; of mappings that is known one by one only.
        Capability read =
            backend::reads_files(PlaceKind::gpu, {MemoryKind::device}, Reach::storage_gpu, "direct storage");
        read.max_gb_per_s = gb_per_s_;
        read.latency_us = latency_us;
        read.reason = "DMA between drive and GPU, proven by cuFile's counters";
        return {read, backend::reversed(read)};
    }

    Support reaches(const Buffer& from, const Buffer& to) override {
        const bool write = to.place().is_file();
        const Buffer& file = write ? to : from;
        const Place& memory = (write ? from : to).place();
        if (!file.place().is_file() || !memory.is_gpu())
            return Support::no("cuFile moves bytes between files and GPU memory only");
        const auto facts = driver::file_facts(file.place().path());
        if (write && facts && *facts && (*facts)->type != driver::FileType::regular)
            return Support::no(
                fmt::format("that writing to a {} is direct cannot be tried out without overwriting it",
                            driver::to_string((*facts)->type)));
        if (!write && !facts) return Support::no(facts.error().message, facts.error().hint);
        if (!write && !*facts)
            return Support::no(
                "whether the way is direct is tried out with the file itself, which does not exist");
        if (!write && (*facts)->size < block)
            return Support::no(fmt::format("only whole blocks of {} go directly, and the file is smaller",
                                           format_bytes(block)));
        Support proven = opened_->prover.prove(file.place().path(), memory.index(), write);
        // A whole file is written under another name.
        if (!proven.usable || (write && file.whole_file())) return proven;
        // The path is proven for the device; whether cuFile takes this file shows when it is opened.
        const auto opened = FileRegistration::open(*opened_, file, {});
        return opened ? proven : Support::no(opened.error().message, opened.error().hint);
    }

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        if (buffer.place().is_file()) return FileRegistration::open(*opened_, buffer, options);
        if (!buffer.place().is_gpu()) return backend::cannot_reach(buffer, name());
        SIDESTEP_TRY(DirectGpu * gpu, opened_->gpus->open(buffer.place().index()));
        return std::unique_ptr<backend::Registration>(std::make_unique<MemoryRegistration>(buffer, *gpu));
    }

    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        SIDESTEP_TRY(const Range range,
                     (backend::file_piece<FileRegistration, MemoryRegistration>(piece, name())));
        return opened_->pool.start([range] { return range.file->move(range); }, flight);
    }

private:
    Result<Support> load(const Topology& topology, const Conditions& conditions) {
        SIDESTEP_TRY(auto cufile, driver::Cufile::load(options_.libraries));
        if (!cufile->has_stats())
            return Support::no(
                fmt::format("libcufile {} cannot show which way bytes take, and without that it is not used",
                            cufile->version_text()),
                "install libcufile 1.15 or newer (CUDA 13.0)");
        SIDESTEP_TRY(const auto cuda, driver::Cuda::load());
        SIDESTEP_TRY(auto gpus, DirectGpus::find(cuda, topology));
        const char* folder = std::getenv("TMPDIR");
        if (auto opened = cufile->open_driver(folder != nullptr && *folder != '\0' ? folder : "/tmp");
            !opened)
            return Support::no(
                fmt::format("libcufile {}: {}", cufile->version_text(), opened.error().message),
                opened.error().hint);
        SIDESTEP_CHECK(cufile->gpu_counts());
        opened_ = std::make_shared<Shared>(std::move(cufile), std::move(gpus));
        gb_per_s_ = quickest_link(topology);
        return Support::yes(fmt::format("libcufile {}, {}; each file system is proven before it is used",
                                        opened_->cufile->version_text(),
                                        conditions.nvidia_fs.empty() ? "nvidia-fs" : "P2PDMA mode"));
    }

    const CufileOptions options_;
    double gb_per_s_ = 0;             // 0 where it is not usable
    std::shared_ptr<Shared> opened_;  // constant after probe(); null where it is not usable
};

}  // namespace

std::unique_ptr<backend::Backend> create(CufileOptions options) {
    return std::make_unique<CufileBackend>(std::move(options));
}

}  // namespace sidestep::backends::cufile
