// Limits of this process and rules of systemd that make pinned or shared memory fail.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/process_facts.hpp"

namespace sidestep::diagnose {

namespace {

constexpr const char* limits_path = "/proc/self/limits";
// What login shells have had for decades; programs raise it themselves up to the hard limit.
constexpr std::uint64_t usual_files = 1024;
// Users below are those of the system, whose memory systemd leaves alone (login.defs: UID_MIN).
constexpr long first_login_user = 1000;

Outcome without_limits(const Evidence& evidence) {
    Outcome outcome = unknown("the limits of this process cannot be read");
    outcome.saw(limits_path,
                evidence.files.state(limits_path) == driver::FileState::denied ? "denied" : "does not exist");
    outcome.remedy = "Look at them with `ulimit -a`, where the slow program is started.";
    outcome.command = "ulimit -a";
    return outcome;
}

Bytes host_memory(const Evidence& evidence) {
    Bytes bytes = 0;
    for (const Device& device : evidence.topology.devices())
        bytes += device.kind == DeviceKind::cpu ? device.memory : 0;
    return bytes;
}

// The last RemoveIPC of a file of systemd-logind that is not a comment.
std::optional<std::string> remove_ipc_in(const driver::MachineFiles& files, const std::string& path) {
    std::optional<std::string> value;
    std::istringstream lines(files.text(path).value_or(""));
    for (std::string line; std::getline(lines, line);) {
        // systemd passes over blanks at both sides of the sign.
        std::erase_if(line, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
        if (line.starts_with("RemoveIPC=")) value = line.substr(10);
    }
    return value;
}

struct RemoveIpc {
    std::string value;  // empty: nothing sets it
    std::string path;
};

// The files in systemd's order: the main one, then the pieces by name, of which one in /etc hides one of the
// same name elsewhere (systemd.syntax, logind.conf(5)).
RemoveIpc remove_ipc(const driver::MachineFiles& files) {
    RemoveIpc found;
    const auto take = [&](const std::string& path) {
        const auto value = remove_ipc_in(files, path);
        if (value) found = {*value, path};
    };
    for (const char* main : {"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"}) take(main);
    std::map<std::string, std::string> pieces;
    for (const char* folder :
         {"/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"}) {
        for (const std::string& name : files.names(folder)) {
            if (name.ends_with(".conf")) pieces[name] = std::string(folder) + "/" + name;
        }
    }
    for (const auto& [name, path] : pieces) take(path);
    return found;
}

// The shell may go up to the hard limit; beyond it root sets limits for logins.
std::string more_files(const ProcessLimit& files) {
    constexpr std::uint64_t plenty = 65536;
    if (!files.hard || *files.hard >= plenty) return fmt::format("ulimit -n {}", plenty);
    if (*files.hard > usual_files) return fmt::format("ulimit -n {}", *files.hard);
    return fmt::format("printf '* - nofile {}\\n' > /etc/security/limits.d/files.conf", plenty);
}

bool is_login_user(const driver::MachineFiles& files) {
    const auto uids = process_status(files, "Uid");  // "1000\t1000\t1000\t1000"
    return !uids || uids->empty() || std::strtol(uids->c_str(), nullptr, 10) >= first_login_user;
}

}  // namespace

bool has_rdma(const Evidence& evidence) {
    return !evidence.verbs.devices.empty() || !evidence.files.names("/sys/class/infiniband").empty();
}

Outcome look_memlock(const Evidence& evidence) {
    if (!has_rdma(evidence)) return does_not_apply("there is no RDMA card whose driver would pin memory");
    const auto limit = process_limit(evidence.files, "Max locked memory");
    if (!limit) return without_limits(evidence);
    Outcome outcome = pass("");
    outcome.saw(std::string(limits_path) + ": Max locked memory", limit->words);
    if (!limit->soft) {
        outcome.summary = "this process may lock any amount of memory";
        return outcome;
    }
    if (has_capability(evidence.files, cap_ipc_lock).value_or(false)) {
        outcome.summary = "the limit of locked memory does not count for this process";
        return outcome.saw("/proc/self/status: CapEff", "holds CAP_IPC_LOCK");
    }
    const Bytes memory = host_memory(evidence);
    if (memory > 0 && *limit->soft >= memory) {
        outcome.summary = "this process may lock as much memory as there is";
        return outcome;
    }
    outcome.verdict = Verdict::warn;
    outcome.summary =
        fmt::format("this process may lock {} bytes of memory; RDMA buffers beyond fail", *limit->soft);
    if (!limit->hard) {
        outcome.remedy =
            "The hard limit allows more: raise the soft one in the shell that starts the program.";
        outcome.command = "ulimit -l unlimited";
    }
    return outcome;
}

Outcome look_ipc_limits(const Evidence& evidence) {
    if (evidence.topology.gpu_count() == 0) return does_not_apply("there is no GPU");
    Outcome outcome = warn("");
    std::vector<std::string> found;
    std::string remedy;
    std::string command;
    const auto blame = [&](const char* what, const char* how, const std::string& line) {
        found.emplace_back(what);
        remedy += (remedy.empty() ? "" : " ") + std::string(how);
        command += (command.empty() ? "" : "; ") + line;
    };
    const RemoveIpc ipc = remove_ipc(evidence.files);
    if (ipc.value.empty()) {
        outcome.saw("/etc/systemd/logind.conf",
                    "RemoveIPC is not set; what then holds differs by distribution");
    } else {
        outcome.saw(ipc.path, "RemoveIPC=" + ipc.value);
        const bool on = ipc.value == "yes" || ipc.value == "true" || ipc.value == "on" || ipc.value == "1";
        if (on && is_login_user(evidence.files))
            blame("systemd removes shared memory when the user logs out",
                  "Set RemoveIPC=no for systemd-logind (as root), or start jobs as a user of the system.",
                  "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\\nRemoveIPC=no\\n' > "
                  "/etc/systemd/logind.conf.d/ipc.conf && systemctl restart systemd-logind");
    }
    const auto files = process_limit(evidence.files, "Max open files");
    const auto stack = process_limit(evidence.files, "Max stack size");
    if (files) outcome.saw(std::string(limits_path) + ": Max open files", files->words);
    if (stack) outcome.saw(std::string(limits_path) + ": Max stack size", stack->words);
    if (files && files->soft && *files->soft < usual_files)
        blame(
            "few files may be open",
            "Raise the limit of open files in the shell that starts the program; the hard limit takes root.",
            more_files(*files));
    if (stack && !stack->soft)
        blame("the stack is unlimited, which gives threads of glibc only 2 MiB",
              "Set a limit of the stack in the shell that starts the program.", "ulimit -s 8192");
    if (found.empty() && (!files || !stack)) return without_limits(evidence);
    if (found.empty()) {
        outcome.verdict = Verdict::pass;
        outcome.summary = "nothing takes shared memory, files or stacks away";
        return outcome;
    }
    outcome.summary = listed(found);
    outcome.remedy = remedy;
    outcome.command = command;
    return outcome;
}

}  // namespace sidestep::diagnose
