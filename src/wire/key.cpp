#include "wire/key.hpp"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/random.hpp"
#include "driver/system_error.hpp"

namespace sidestep::wire {
namespace {

constexpr std::size_t key_digits = 2 * key_bytes;
constexpr int name_attempts = 100;
constexpr const char* make_anew = "remove it to have a new one made, or copy that of another node there";

Error refuse_key(ErrorCode code, const std::string& path, std::string_view why, std::string hint) {
    return Error{code, fmt::format("the key {} {}", path, why), {}, std::move(hint)};
}

Error cannot_open(int number, const std::string& path, std::string hint) {
    return driver::system_error(number, fmt::format("cannot open the key {}", path), "open", std::move(hint));
}

// An absolute path in the environment; relative ones mean nothing there.
std::string folder_in_environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value == '/' ? value : "";
}

int value_of(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

// The bytes that the text of a file spells; empty: it is no key.
std::string key_of(std::string_view text) {
    if (text.ends_with('\n')) text.remove_suffix(1);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.size() != key_digits) return {};
    std::string key;
    for (std::size_t i = 0; i < key_digits; i += 2) {
        const int high = value_of(text[i]), low = value_of(text[i + 1]);
        if (high < 0 || low < 0) return {};
        key += static_cast<char>(high * 16 + low);
    }
    return key;
}

// Text that leaves nothing behind in memory.
struct SecretText {
    std::array<char, key_digits + 2> bytes{};
    ~SecretText() { ::explicit_bzero(bytes.data(), bytes.size()); }
};

Result<void> check_key_file(const struct stat& status, const std::string& path) {
    if (!S_ISREG(status.st_mode))
        return refuse_key(ErrorCode::invalid_argument, path, "is not a regular file", "name a file");
    if (status.st_uid != ::geteuid() && status.st_uid != 0)
        return refuse_key(ErrorCode::permission_denied, path,
                          fmt::format("belongs to user {}", status.st_uid), "use a file of your own");
    if ((status.st_mode & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH)) != 0)
        return refuse_key(ErrorCode::permission_denied, path, "may be read or written by others",
                          fmt::format("chmod 600 {}; if others may have read it, make a new one", path));
    return {};
}

// What folder and name a key is made under.
Result<driver::SplitPath> split_key_path(const std::string& path) {
    auto split = driver::split_path(path);
    if (split.name.empty() || split.name == "." || split.name == "..")
        return refuse_key(ErrorCode::invalid_argument, path, "has no name of a file", "name a file");
    return split;
}

// With those above it that are not there; what is made is this user's alone.
Result<void> make_folder(const std::string& path) {
    if (::mkdir(path.c_str(), S_IRWXU) == 0 || errno == EEXIST) return {};
    int number = errno;
    const std::string above = driver::split_path(path).folder;
    if (number == ENOENT && above != path) {
        SIDESTEP_CHECK(make_folder(above));
        if (::mkdir(path.c_str(), S_IRWXU) == 0 || errno == EEXIST) return {};
        number = errno;
    }
    return driver::system_error(number, fmt::format("cannot make the folder {} for a key", path), "mkdir",
                                "make it, or name another file for the key");
}

// A file with a new key under a name that goes away again.
class TemporaryKey {
public:
    static Result<void> make_at(const std::string& path);

private:
    TemporaryKey(const driver::Fd& folder, const std::string& path) : folder_(folder), path_(path) {}
    TemporaryKey(const TemporaryKey&) = delete;
    TemporaryKey& operator=(const TemporaryKey&) = delete;
    ~TemporaryKey() {
        if (fd_) ::unlinkat(folder_.get(), name_.c_str(), 0);
    }
    Result<void> create(const std::string& beside);
    Result<void> write();

    const driver::Fd& folder_;
    const std::string& path_;
    std::string name_;
    driver::Fd fd_;
};

Result<void> TemporaryKey::create(const std::string& beside) {
    int number = EEXIST;
    for (int i = 0; i < name_attempts && number == EEXIST; ++i) {
        name_ = fmt::format(".{}.sidestep-{:016x}", beside.substr(0, 200), driver::random_number());
        fd_ = driver::Fd(::openat(folder_.get(), name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                  S_IRUSR | S_IWUSR));
        if (fd_) return {};
        number = errno;
    }
    return driver::system_error(number, fmt::format("cannot make the key {}", path_), "open",
                                "name a file in a folder of your own");
}

Result<void> TemporaryKey::write() {
    std::array<unsigned char, key_bytes> key{};
    SecretText text;
    const bool random = driver::fill_random(key.data(), key.size());
    constexpr const char* digits = "0123456789abcdef";
    for (std::size_t i = 0; i < key_bytes; ++i) {
        text.bytes[2 * i] = digits[key[i] / 16];
        text.bytes[2 * i + 1] = digits[key[i] % 16];
    }
    ::explicit_bzero(key.data(), key.size());
    text.bytes[key_digits] = '\n';
    if (!random)
        return Error{ErrorCode::unsupported,
                     fmt::format("cannot make the key {}: the kernel gives no random bytes", path_),
                     "getrandom", "copy the key of another node there"};
    // Whatever the process's umask takes away.
    if (::fchmod(fd_.get(), S_IRUSR | S_IWUSR) != 0)
        return driver::system_error(errno, fmt::format("cannot make the key {}", path_), "fchmod");
    return driver::write_range(fd_, 0, text.bytes.data(), key_digits + 1, path_);
}

// Success too where another process was first.
Result<void> TemporaryKey::make_at(const std::string& path) {
    SIDESTEP_TRY(const driver::SplitPath at, split_key_path(path));
    SIDESTEP_CHECK(make_folder(at.folder));
    const driver::Fd folder(::open(at.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder)
        return driver::system_error(errno, fmt::format("cannot make the key {}", path), "open",
                                    "name a file in a folder of your own");
    TemporaryKey key(folder, path);
    SIDESTEP_CHECK(key.create(at.name));
    SIDESTEP_CHECK(key.write());
    // Unlike rename(), link() leaves a file that has the name meanwhile.
    if (::linkat(folder.get(), key.name_.c_str(), folder.get(), at.name.c_str(), 0) == 0 || errno == EEXIST)
        return {};
    return driver::system_error(errno, fmt::format("cannot give the key {} its name", path), "link",
                                "name a file on a file system that has hard links");
}

}  // namespace

Result<std::string> key_path(const std::string& given) {
    if (!given.empty()) return given;
    if (const auto config = folder_in_environment("XDG_CONFIG_HOME"); !config.empty())
        return config + "/sidestep/key";
    if (const auto home = folder_in_environment("HOME"); !home.empty()) return home + "/.config/sidestep/key";
    return Error{ErrorCode::not_found,
                 "there is no place for the key: neither HOME nor XDG_CONFIG_HOME is set", "environment",
                 "name the key's file, or set HOME"};
}

Result<std::string> read_key(const std::string& path) {
    if (path.find('\0') != std::string::npos)
        return Error{ErrorCode::invalid_argument, "the path of a key holds a zero byte", {}, "name a file"};
    // Only looks: to open a device or a pipe may do something.
    const driver::Fd seen(::open(path.c_str(), O_PATH | O_CLOEXEC));
    struct stat status {};
    if (!seen || ::fstat(seen.get(), &status) != 0)
        return cannot_open(errno, path,
                           "copy the key of another node there, mode 0600, or name another file");
    SIDESTEP_CHECK(check_key_file(status, path));
    // The very file that was looked at, whatever has its name by now.
    const driver::Fd fd(::open(fmt::format("/proc/self/fd/{}", seen.get()).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd)
        return cannot_open(errno == ENOENT ? ENOSYS : errno, path,
                           "it has to be this user's, and /proc be there");
    const Error not_a_key =
        refuse_key(ErrorCode::invalid_argument, path,
                   fmt::format("does not hold {} hexadecimal digits", key_digits), make_anew);
    SecretText text;
    if (status.st_size < static_cast<off_t>(key_digits) ||
        status.st_size > static_cast<off_t>(text.bytes.size()))
        return not_a_key;
    const auto size = static_cast<std::size_t>(status.st_size);
    SIDESTEP_CHECK(driver::read_range(fd, 0, text.bytes.data(), size, path));
    std::string key = key_of({text.bytes.data(), size});
    if (key.empty()) return not_a_key;
    return key;
}

Result<std::string> read_or_make_key(const std::string& path) {
    auto key = read_key(path);
    if (key || key.error().code != ErrorCode::not_found) return key;
    SIDESTEP_CHECK(TemporaryKey::make_at(path));
    key = read_key(path);
    if (!key && key.error().code == ErrorCode::not_found)
        return refuse_key(ErrorCode::not_found, path, "is a link that leads nowhere, or was removed at once",
                          "remove the link, or make what it leads to");
    return key;
}

}  // namespace sidestep::wire
