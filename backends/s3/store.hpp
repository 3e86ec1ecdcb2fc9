// An S3 store as one asks it: what an object is, its bytes, the names below a prefix. Requests that fail in passing are made
// again, five times at most in a row without a byte, ever later.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

#include "backends/s3/settings.hpp"
#include "backends/s3/words.hpp"
#include "driver/http_client.hpp"

namespace sidestep::backends::s3 {

struct Object {
    Name name;
    Bytes size = 0;
    std::string etag;  // with its quotes
};

// Any thread; every call may block.
class Store {
public:
    // Nothing where there is no such object. not_found where there is no such bucket, permission_denied where the store says
    // so, invalid_argument for a wrong region.
    Result<std::optional<Object>> look(const Name& name);
    // Exactly those bytes of exactly that object: mismatch where it has been replaced since.
    Result<void> read(const Object& object, Bytes offset, char* to, Bytes size);
    // Of the objects right below the folder, without those that begin with a dot.
    Result<std::vector<std::string>> names_in(const Name& folder);

    // Requests that were made again, and why the last one was; nothing where none was.
    std::optional<std::string> repeated() const;
    // Whatever is under way ends soon.
    void stop();

private:
    // Set when something is asked first: programs that name no object load no library.
    struct Access {
        Settings settings;
        std::shared_ptr<driver::HttpClient> client;
    };
    struct Ask {
        Name name;               // what errors are about
        std::string path;        // after the bucket, escaped, with its slash
        std::string query = {};  // sorted, escaped
        std::vector<std::string> headers = {};
        char* to = nullptr;
        Bytes room = 0;
        std::function<std::optional<Error>(const driver::HttpAnswer&)> check = {};
    };
    Result<Access> access();
    driver::HttpRequest request_of(const Access& access, const Ask& ask) const;
    // Again until an answer is there that another try would not change; its status tells what it is.
    Result<driver::HttpAnswer> ask(const Ask& ask);
    Result<void> wait_to_repeat(int tries, const std::string& why);

    mutable std::mutex mutex_;
    std::optional<Access> access_;
    std::size_t repeats_ = 0;
    std::string last_reason_;
    std::atomic<bool> stopped_{false};
};

}  // namespace sidestep::backends::s3
