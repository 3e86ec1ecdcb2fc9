#include <sidestep/record.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "base/try.hpp"
#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/diagnose.hpp"
#include "diagnose/driver_records.hpp"
#include "diagnose/record_masks.hpp"
#include "topology/machine_facts_reader.hpp"
#include "topology/nvml_record_reader.hpp"

namespace sidestep {

namespace {

namespace fs = std::filesystem;
using driver::FileAccesses;
using driver::FileState;
using driver::MachineFiles;

// Of one file; a kernel's symbol table is the longest that is read.
constexpr std::size_t longest_file = std::size_t{64} << 20;

Error cannot(const std::string& what, const std::string& path, const std::error_code& why) {
    return Error{why == std::errc::no_space_on_device ? ErrorCode::no_space : ErrorCode::io_error,
                 fmt::format("{} cannot be {}: {}", path, what, why.message()), "record", ""};
}

// Writes a tree that looks to the readers as this machine does: links stay links, so that a device is found
// by its bus id and by its place.
class Writer {
public:
    Writer(std::string folder, std::string host_name)
        : folder_(std::move(folder)), host_name_(std::move(host_name)) {}

    Result<void> write_all(const FileAccesses& accesses, const MachineFiles& files);
    Result<void> write(const std::string& place, const std::string& text);
    std::size_t files() const { return files_; }

private:
    // Where a path's bytes lie in the end, with the folders and links on the way made in the record. Empty
    // where the path leads nowhere on this machine, or around in a circle.
    std::string place(const std::string& path, bool follow_last);
    // What the readers of the record will ask for: the user's home folder, whose name may be private, has another there.
    static std::string name_of(const std::string& path, const MachineFiles& files);
    Result<void> write_file(const std::string& path, const MachineFiles& files);
    void write_names(const std::string& folder);
    void write_entry(const std::string& path);

    std::string folder_;
    std::string host_name_;
    std::string denied_;
    std::size_t files_ = 0;
};

constexpr int max_links = 40;
constexpr const char* working_folder = "/proc/self/cwd";

// The process is called by a number that the record must not have.
bool stays(const std::string& path) {
    return path == "/proc/self" || path == "/proc/thread-self";
}

std::string Writer::place(const std::string& path, bool follow_last) {
    if (const std::string here = std::string(working_folder) + "/"; path.starts_with(here))
        return fs::path(path.substr(here.size() - 1)).lexically_normal().string();
    fs::path done = "/";
    std::string rest = fs::path(path).lexically_normal().string().substr(1);
    int links = 0;
    std::error_code ignored;
    while (!rest.empty()) {
        const auto slash = rest.find('/');
        const fs::path next = done / rest.substr(0, slash);
        const bool last = slash == std::string::npos;
        rest = last ? "" : rest.substr(slash + 1);
        const fs::file_status status = fs::symlink_status(next, ignored);
        if (!fs::exists(status)) return {};
        if (fs::is_symlink(status) && !stays(next.string()) && (!last || follow_last)) {
            if (++links > max_links) return {};
            const fs::path target = fs::read_symlink(next, ignored);
            const fs::path full = target.is_absolute() ? target : (done / target).lexically_normal();
            fs::create_directories(folder_ + done.string(), ignored);
            fs::create_symlink(full.lexically_relative(done), folder_ + next.string(), ignored);
            rest = full.string().substr(1) + (rest.empty() ? "" : "/" + rest);
            done = "/";
            continue;
        }
        if (fs::is_directory(status) || stays(next.string())) {
            fs::create_directories(folder_ + next.string(), ignored);
        }
        done = next;
    }
    return done.string();
}

Result<void> Writer::write(const std::string& place, const std::string& text) {
    const std::string full = folder_ + place;
    std::error_code error;
    fs::create_directories(fs::path(full).parent_path(), error);
    if (error) return cannot("made", fs::path(full).parent_path().string(), error);
    errno = EIO;
    std::ofstream file(full, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    if (!file) return cannot("written", full, std::error_code(errno, std::generic_category()));
    ++files_;
    return {};
}

std::string Writer::name_of(const std::string& path, const MachineFiles& files) {
    const std::string file = "/.nccl.conf";
    const bool in_home = path == topology::process_variable(files, "HOME") + file &&
                         topology::process_variable(files, "NCCL_CONF_FILE").empty();
    return in_home ? diagnose::home_record + file : path;
}

Result<void> Writer::write_file(const std::string& path, const MachineFiles& files) {
    const std::string name = name_of(path, files);
    const FileState state = files.state(path);
    if (state == FileState::denied) {
        denied_ += name + "\n";
        return {};
    }
    const auto text = files.text(path, longest_file);
    const std::string at = name == path ? place(path, true) : name;
    if (at.empty() || state == FileState::missing) return {};
    // There, but it fails on reading, as some files of /sys do.
    if (!text) {
        denied_ += name + "\n";
        return {};
    }
    const auto settings = diagnose::nccl_files(files);
    const bool of_nccl = std::count(settings.begin(), settings.end(), path) > 0;
    return write(at, diagnose::masked(of_nccl ? settings.back() : path, *text, host_name_));
}

// An entry that is only known by its name: an empty file, a folder, or a link.
void Writer::write_entry(const std::string& path) {
    std::error_code ignored;
    const fs::file_status status = fs::symlink_status(path, ignored);
    if (!fs::exists(status)) return;
    const std::string full = folder_ + path;
    if (fs::is_symlink(status)) {
        if (fs::exists(fs::symlink_status(full, ignored))) return;
        const fs::path target = fs::read_symlink(path, ignored);
        const fs::path relative =
            target.is_absolute() ? target.lexically_relative(fs::path(path).parent_path()) : target;
        fs::create_symlink(relative, full, ignored);
    } else if (fs::is_directory(status)) {
        fs::create_directories(full, ignored);
    } else if (!fs::exists(full, ignored)) {
        std::ofstream(full).close();
    }
}

void Writer::write_names(const std::string& folder) {
    const std::string at = place(folder, true);
    if (at.empty()) return;
    std::error_code error;
    for (fs::directory_iterator entry(at, error), end; !error && entry != end; entry.increment(error))
        write_entry(entry->path().string());
}

Result<void> Writer::write_all(const FileAccesses& accesses, const MachineFiles& files) {
    // The working folder's name may be private, so the record has the process in its root folder.
    std::error_code ignored;
    fs::create_directories(folder_ + "/proc/self", ignored);
    fs::create_symlink("../..", folder_ + working_folder, ignored);
    for (const std::string& path : accesses.followed) {
        if (path == working_folder) continue;
        const std::string at = place(path, true);
        // Links such as /proc/self/ns/pid say something and lead nowhere.
        if (at.empty() || path.starts_with("/proc/self/")) {
            const std::string link = place(path, false);
            if (!link.empty()) write_entry(link);
        }
    }
    for (const std::string& path : accesses.listed) write_names(path);
    for (const std::string& path : accesses.asked) {
        if (files.state(path) == FileState::denied) denied_ += path + "\n";
        const std::string at = place(path, true);
        if (!at.empty()) write_entry(at);
    }
    for (const std::string& path : accesses.read) SIDESTEP_CHECK(write_file(path, files));
    return write(MachineFiles::denied_list, denied_);
}

Result<void> make_empty(const std::string& folder) {
    std::error_code error;
    if (fs::exists(folder, error) && !(fs::is_directory(folder, error) && fs::is_empty(folder, error))) {
        return Error{ErrorCode::invalid_argument, fmt::format("{} is there and not an empty folder", folder),
                     "record", "name a folder that does not exist yet"};
    }
    fs::create_directories(folder, error);
    if (error) return cannot("made", folder, error);
    return {};
}

Result<std::string> record_into(const std::string& folder) {
    SIDESTEP_TRY(topology::MachineSource source, topology::open_source(""));
    const auto accesses = std::make_shared<FileAccesses>();
    source.files.note_accesses(accesses);
    SIDESTEP_TRY(const diagnose::Evidence evidence, diagnose::gather(std::move(source)));
    const Diagnosis diagnosis = diagnose::examine_all(evidence);

    const MachineFiles files("");
    std::error_code error;
    const std::string absolute = fs::absolute(folder, error).string();
    Writer writer(absolute, files.line("/proc/sys/kernel/hostname").value_or(""));
    // Half of a record would pass for a machine that lacks the rest.
    SIDESTEP_CHECK(writer.write(topology::MachineSource::unfinished, ""));
    SIDESTEP_CHECK(writer.write_all(*accesses, files));
    if (evidence.nvml)
        SIDESTEP_CHECK(
            writer.write(topology::MachineSource::nvml_record, topology::nvml_to_json(*evidence.nvml)));
    SIDESTEP_CHECK(writer.write(diagnose::cuda_record, diagnose::cuda_to_json(evidence.cuda)));
    SIDESTEP_CHECK(writer.write(diagnose::verbs_record, diagnose::verbs_to_json(evidence.verbs)));
    if (evidence.kernel_log.told) {
        std::string lines;
        for (const std::string& line : evidence.kernel_log.lines) lines += line + "\n";
        SIDESTEP_CHECK(writer.write(diagnose::kernel_log_record,
                                    diagnose::masked(diagnose::kernel_log_record, lines,
                                                     files.line("/proc/sys/kernel/hostname").value_or(""))));
    }
    fs::remove(absolute + topology::MachineSource::unfinished, error);
    if (error) return cannot("removed", absolute + topology::MachineSource::unfinished, error);
    return fmt::format(
        "{} files in {}: all that the topology and {} checks look at. Host name, addresses and serial "
        "numbers are masked",
        writer.files() - 1, folder, diagnosis.findings.size());
}

}  // namespace

Result<std::string> record_machine(const std::string& folder) {
    SIDESTEP_CHECK(make_empty(folder));
    auto words = record_into(folder);
    if (std::error_code ignored; !words) fs::remove_all(folder, ignored);
    return words;
}

}  // namespace sidestep
