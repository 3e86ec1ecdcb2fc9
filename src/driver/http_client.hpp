// HTTP requests by libcurl, which is loaded while the program runs.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::driver {

struct HttpAnswer;

struct HttpRequest {
    std::string url;
    std::vector<std::string> headers = {};  // "name: value"
    // As CURLOPT_AWS_SIGV4 and CURLOPT_USERPWD take them; empty: the request is not signed.
    std::string signature = {};
    std::string user = {};
    std::optional<std::string> post = {};  // what is sent: a POST
    std::chrono::milliseconds limit{0};    // of the whole request; 0: none
    // Where the body of an answer 206 goes, at most `room` bytes; that of all others becomes HttpAnswer::body. Null: every
    // body does.
    char* to = nullptr;
    Bytes room = 0;
    // What is wrong with the headers of an answer 206, asked before the first byte of its body is taken: an error ends it.
    std::function<std::optional<Error>(const HttpAnswer&)> check = {};
};

// What came, also where the connection broke before its end.
struct HttpAnswer {
    long status = 0;                             // 0: none came
    std::map<std::string, std::string> headers;  // names in small letters
    std::string body;                            // at most 16 MiB
    Bytes received = 0;                          // at HttpRequest::to
    std::optional<Error> broken;
};

// Keeps its connections. Any thread may call, and as many at once as like.
class HttpClient {
public:
    // unsupported where this build has none, not_found with what to install.
    static Result<std::shared_ptr<HttpClient>> load();

    virtual ~HttpClient() = default;

    // A GET, or what `post` says. Blocks; connecting, and waiting for the next byte, take 10 s at most each.
    virtual HttpAnswer get(const HttpRequest& request) = 0;
    // Requests that are under way end within a second, and new ones at once.
    void stop() { stopped_.store(true); }
    bool stopped() const { return stopped_.load(); }

private:
    std::atomic<bool> stopped_{false};
};

}  // namespace sidestep::driver
