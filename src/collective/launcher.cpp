// Names of groups, and who a process is by what its launcher told it.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include <sidestep/collective.hpp>
#include "base/environment.hpp"
#include "base/try.hpp"
#include "driver/random.hpp"
#include "topology/numbers.hpp"

namespace sidestep {
namespace {

std::string text_of(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// A launcher's variables. Sources: the manuals of torchrun, mpirun (Open MPI 4 and 5), MPICH's hydra and
// Intel MPI, srun.
struct Launcher {
    const char* name;
    const char* rank;
    const char* ranks;
    const char* local_rank;
    const char* local_ranks;  // null: not told
    // Whose values, set or not, are the same on all ranks of a job, and different in another one.
    std::initializer_list<const char*> job;
    // No variable tells jobs apart: the process that started all ranks of a machine does.
    bool by_parent = false;
    const char* machines = nullptr;  // on how many the job runs; null: not told
    bool tells_local = false;        // one that does not tell the local rank is another launcher
};

// In this order: mpirun may run below srun, whose variables its ranks inherit; srun may speak MPICH's
// protocol (--mpi=pmi2), but tells no local rank in its words. A batch script of Slurm has a SLURM_PROCID but
// is not a rank: it has no step.
const Launcher launchers[] = {
    {"sidestep run", "SIDESTEP_RANK", "SIDESTEP_RANKS", "LOCAL_RANK", nullptr, {"SIDESTEP_GROUP_ID"}},
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {"mpirun (Open MPI)",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}},
    {"mpirun (MPICH, Intel MPI)",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {},
     true,
     nullptr,
     true},
    {"srun",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     nullptr,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     false,
     "SLURM_STEP_NUM_NODES"},
    {"a launcher that speaks PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", {}, true},
};

bool started(const Launcher& launcher) {
    return !text_of(launcher.rank).empty() && !text_of(launcher.ranks).empty() &&
           (!launcher.tells_local || !text_of(launcher.local_rank).empty());
}

Result<int> number_of(const char* variable) {
    const std::string text = text_of(variable);
    char* end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || value < 0 || value > 1'000'000)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{}={} is not a number", variable, text),
                     "environment",
                     {}};
    return static_cast<int>(value);
}

// FNV-1a of 64 bits, twice. Source: RFC draft-eastlake-fnv.
GroupId id_of(const std::string& text) {
    GroupId id;
    for (std::size_t half = 0; half < 2; ++half) {
        std::uint64_t state = 14695981039346656037ull ^ half;
        for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 1099511628211ull;
        std::memcpy(id.bytes.data() + 8 * half, &state, sizeof(state));
    }
    return id;
}

// An id in the environment that is none is taken as a text.
GroupId id_of_job(const Launcher& launcher) {
    if (const std::string given = text_of("SIDESTEP_GROUP_ID"); !given.empty()) {
        const auto parsed = GroupId::parse(given);
        return parsed ? *parsed : id_of(given);
    }
    std::string text = fmt::format("{}\n{}\n", launcher.name, text_of(launcher.ranks));
    bool told = false;
    for (const char* variable : launcher.job) {
        text += fmt::format("{}={}\n", variable, text_of(variable));
        told = told || !text_of(variable).empty();
    }
    if (launcher.by_parent || !told) text += fmt::format("parent {}\n", ::getppid());
    return id_of(text);
}

Error several_machines(const Launcher& launcher, const std::string& what) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{} runs this job on several machines: {}", launcher.name, what), "environment",
                 "a group's ranks are all on one machine"};
}

// Numbers of GPUs have a gap where the driver has lost one.
Place gpu_of(int local_rank) {
    const auto topology = Topology::open("");  // an error of it is that of the context too
    const auto numbers = topology ? topology::numbers_of(*topology, DeviceKind::gpu) : std::vector<int>();
    const auto at = static_cast<std::size_t>(local_rank);
    return Place::gpu(at < numbers.size() ? numbers[at] : local_rank);
}

Result<Seating> seating_by(const Launcher& launcher) {
    Seating seating;
    SIDESTEP_TRY(seating.rank, number_of(launcher.rank));
    SIDESTEP_TRY(seating.ranks, number_of(launcher.ranks));
    if (seating.rank >= seating.ranks)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{}={} is not a rank of {}={}", launcher.rank, seating.rank, launcher.ranks,
                                 seating.ranks),
                     "environment", "ranks count from 0"};
    int local = seating.rank;
    if (!text_of(launcher.local_rank).empty()) {
        SIDESTEP_TRY(local, number_of(launcher.local_rank));
    }
    if (launcher.local_ranks != nullptr && !text_of(launcher.local_ranks).empty()) {
        SIDESTEP_TRY(const int here, number_of(launcher.local_ranks));
        if (here < seating.ranks)
            return several_machines(launcher, fmt::format("{}={} of {}={}", launcher.local_ranks, here,
                                                          launcher.ranks, seating.ranks));
    }
    if (const std::string machines = launcher.machines == nullptr ? "" : text_of(launcher.machines);
        !machines.empty() && machines != "1")
        return several_machines(launcher, fmt::format("{}={}", launcher.machines, machines));
    seating.place = gpu_of(local);
    seating.id = id_of_job(launcher);
    return seating;
}

}  // namespace

Result<GroupId> GroupId::create() {
    GroupId id;
    for (std::size_t at = 0; at < id.bytes.size(); at += sizeof(std::uint64_t)) {
        const std::uint64_t number = driver::random_number();
        std::memcpy(id.bytes.data() + at, &number, sizeof(number));
    }
    return id;
}

std::string GroupId::to_string() const {
    std::string text;
    for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
    return text;
}

Result<GroupId> GroupId::parse(const std::string& text) {
    GroupId id;
    const auto digit = [](char c) {
        return c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : -1;
    };
    bool right = text.size() == 2 * id.bytes.size();
    for (std::size_t i = 0; right && i < id.bytes.size(); ++i) {
        const int high = digit(text[2 * i]);
        const int low = digit(text[2 * i + 1]);
        right = high >= 0 && low >= 0;
        if (right) id.bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
    }
    if (right) return id;
    return Error{ErrorCode::invalid_argument, fmt::format("\"{}\" is not an id of a group", text), "group",
                 "it has 32 hexadecimal digits"};
}

Result<Seating> Seating::from_environment() {
    SIDESTEP_TRY(const base::Environment environment,
                 base::Environment::read());  // names what is wrong with our own
    (void)environment;
    for (const Launcher& launcher : launchers)
        if (started(launcher)) return seating_by(launcher);
    return Error{ErrorCode::not_found, "no launcher told this process its rank", "environment",
                 "start it with torchrun, mpirun, srun or sidestep run"};
}

}  // namespace sidestep
