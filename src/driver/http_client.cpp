#include "driver/http_client.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/dynamic_library.hpp"

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>
#endif

namespace sidestep::driver {

#if !__has_include(<curl/curl.h>)

Result<std::shared_ptr<HttpClient>> HttpClient::load() {
    return Error{ErrorCode::unsupported, "this build makes no HTTP requests", "libcurl",
                 "install libcurl4-openssl-dev and build it again"};
}

#else

namespace {

constexpr long patience_s = 10;
// The first that signs headers of the caller's (Debian 12 has it).
#define SIDESTEP_OLDEST_CURL 0x075800
constexpr std::size_t most_body = std::size_t{16} << 20;
constexpr long read_at_once = 512L << 10;

// The functions, and handles with open connections that wait for the next request.
class Curl final : public HttpClient {
public:
    explicit Curl(DynamicLibrary library) : library_(std::move(library)) {}
    ~Curl() override {
        for (CURL* handle : idle_) easy_cleanup_(handle);
    }
    Result<void> bind();
    HttpAnswer get(const HttpRequest& request) override;

private:
    struct Exchange {
        Curl* client;
        CURL* handle;
        const HttpRequest* request;
        HttpAnswer answer;
    };
    static std::size_t take_header(char* data, std::size_t, std::size_t size, void* exchange);
    static std::size_t take_body(char* data, std::size_t, std::size_t size, void* exchange);
    static int look(void* client, curl_off_t, curl_off_t, curl_off_t, curl_off_t);
    CURL* take();
    void prepare(CURL* handle, const HttpRequest& request, curl_slist* headers, Exchange& exchange);
    Error failed(CURLcode code, const char* words, const std::string& url) const;

    DynamicLibrary library_;
    decltype(&curl_global_init) global_init_ = nullptr;
    decltype(&curl_easy_init) easy_init_ = nullptr;
    decltype(&curl_easy_setopt) easy_setopt_ = nullptr;
    decltype(&curl_easy_perform) easy_perform_ = nullptr;
    decltype(&curl_easy_getinfo) easy_getinfo_ = nullptr;
    decltype(&curl_easy_reset) easy_reset_ = nullptr;
    decltype(&curl_easy_cleanup) easy_cleanup_ = nullptr;
    decltype(&curl_easy_strerror) easy_strerror_ = nullptr;
    decltype(&curl_slist_append) slist_append_ = nullptr;
    decltype(&curl_slist_free_all) slist_free_all_ = nullptr;
    std::mutex mutex_;
    std::vector<CURL*> idle_;
};

Result<void> Curl::bind() {
    SIDESTEP_CHECK(library_.bind(global_init_, "curl_global_init"));
    SIDESTEP_CHECK(library_.bind(easy_init_, "curl_easy_init"));
    SIDESTEP_CHECK(library_.bind(easy_setopt_, "curl_easy_setopt"));
    SIDESTEP_CHECK(library_.bind(easy_perform_, "curl_easy_perform"));
    SIDESTEP_CHECK(library_.bind(easy_getinfo_, "curl_easy_getinfo"));
    SIDESTEP_CHECK(library_.bind(easy_reset_, "curl_easy_reset"));
    SIDESTEP_CHECK(library_.bind(easy_cleanup_, "curl_easy_cleanup"));
    SIDESTEP_CHECK(library_.bind(easy_strerror_, "curl_easy_strerror"));
    SIDESTEP_CHECK(library_.bind(slist_append_, "curl_slist_append"));
    SIDESTEP_CHECK(library_.bind(slist_free_all_, "curl_slist_free_all"));
    decltype(&curl_version_info) version_info = nullptr;
    SIDESTEP_CHECK(library_.bind(version_info, "curl_version_info"));
    const curl_version_info_data* const found = version_info(CURLVERSION_FIRST);
    if (found->version_num < SIDESTEP_OLDEST_CURL)
        return Error{ErrorCode::unsupported,
                     fmt::format("libcurl {} does not sign all that S3 wants signed", found->version),
                     "libcurl", "install 7.88 or newer"};
    // Safe beside other threads from 7.84 on, and counted.
    if (const CURLcode code = global_init_(CURL_GLOBAL_DEFAULT); code != CURLE_OK)
        return Error{ErrorCode::unsupported,
                     fmt::format("libcurl does not start: {}", easy_strerror_(code)),
                     "libcurl",
                     {}};
    return {};
}

std::size_t Curl::take_header(char* data, std::size_t, std::size_t size, void* exchange) {
    const std::string_view line(data, size);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return size;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    std::string_view value = line.substr(colon + 1);
    const std::size_t first = value.find_first_not_of(" \t");
    const std::size_t last = value.find_last_not_of(" \t\r\n");
    value = first == std::string_view::npos ? "" : value.substr(first, last - first + 1);
    static_cast<Exchange*>(exchange)->answer.headers[name] = value;
    return size;
}

// Answering less than `size` ends the request.
std::size_t Curl::take_body(char* data, std::size_t, std::size_t size, void* given) {
    auto& exchange = *static_cast<Exchange*>(given);
    HttpAnswer& answer = exchange.answer;
    long status = 0;
    exchange.client->easy_getinfo_(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
    if (exchange.request->to == nullptr || status != 206) {
        if (answer.body.size() + size > most_body) return 0;
        answer.body.append(data, size);
        return size;
    }
    if (answer.received == 0 && exchange.request->check) answer.broken = exchange.request->check(answer);
    if (answer.broken || size > exchange.request->room - answer.received) return 0;
    std::memcpy(exchange.request->to + answer.received, data, size);
    answer.received += size;
    return size;
}

int Curl::look(void* client, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Curl*>(client)->stopped() ? 1 : 0;
}

CURL* Curl::take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return easy_init_();
    CURL* const handle = idle_.back();
    idle_.pop_back();
    return handle;
}

void Curl::prepare(CURL* handle, const HttpRequest& request, curl_slist* headers, Exchange& exchange) {
    easy_reset_(handle);  // its connections stay
    easy_setopt_(handle, CURLOPT_URL, request.url.c_str());
    easy_setopt_(handle, CURLOPT_HTTPHEADER, headers);
    if (!request.signature.empty()) {
        easy_setopt_(handle, CURLOPT_AWS_SIGV4, request.signature.c_str());
        easy_setopt_(handle, CURLOPT_USERPWD, request.user.c_str());
    }
#if LIBCURL_VERSION_NUM >= SIDESTEP_OLDEST_CURL
    easy_setopt_(handle, CURLOPT_PROTOCOLS_STR, "http,https");
#endif
    if (request.post) {
        easy_setopt_(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.post->size()));
        easy_setopt_(handle, CURLOPT_POSTFIELDS, request.post->data());
    }
    easy_setopt_(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(request.limit.count()));
    easy_setopt_(handle, CURLOPT_NOSIGNAL, 1L);
    easy_setopt_(handle, CURLOPT_TCP_KEEPALIVE, 1L);
    easy_setopt_(handle, CURLOPT_BUFFERSIZE, read_at_once);
    easy_setopt_(handle, CURLOPT_CONNECTTIMEOUT, patience_s);
    easy_setopt_(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    easy_setopt_(handle, CURLOPT_LOW_SPEED_TIME, patience_s);
    easy_setopt_(handle, CURLOPT_HEADERFUNCTION, &take_header);
    easy_setopt_(handle, CURLOPT_HEADERDATA, &exchange);
    easy_setopt_(handle, CURLOPT_WRITEFUNCTION, &take_body);
    easy_setopt_(handle, CURLOPT_WRITEDATA, &exchange);
    easy_setopt_(handle, CURLOPT_NOPROGRESS, 0L);
    easy_setopt_(handle, CURLOPT_XFERINFOFUNCTION, &look);
    easy_setopt_(handle, CURLOPT_XFERINFODATA, static_cast<void*>(this));
}

Error Curl::failed(CURLcode code, const char* words, const std::string& url) const {
    ErrorCode kind = ErrorCode::io_error;
    if (code == CURLE_OPERATION_TIMEDOUT) kind = ErrorCode::timed_out;
    if (code == CURLE_PARTIAL_FILE) kind = ErrorCode::end_of_file;
    if (code == CURLE_ABORTED_BY_CALLBACK) kind = ErrorCode::cancelled;
    if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT) kind = ErrorCode::not_found;
    return Error{kind,
                 fmt::format("libcurl: {}", *words != '\0' ? words : easy_strerror_(code)),
                 url.substr(0, url.find('?')),
                 {}};
}

HttpAnswer Curl::get(const HttpRequest& request) {
    Exchange exchange{this, take(), &request, {}};
    HttpAnswer& answer = exchange.answer;
    if (exchange.handle == nullptr) {
        answer.broken = Error{ErrorCode::out_of_memory, "libcurl gave no handle", request.url, {}};
        return answer;
    }
    curl_slist* headers = nullptr;
    for (const std::string& header : request.headers) headers = slist_append_(headers, header.c_str());
    char words[CURL_ERROR_SIZE] = "";
    prepare(exchange.handle, request, headers, exchange);
    easy_setopt_(exchange.handle, CURLOPT_ERRORBUFFER, words);
    const CURLcode code = stopped() ? CURLE_ABORTED_BY_CALLBACK : easy_perform_(exchange.handle);
    easy_getinfo_(exchange.handle, CURLINFO_RESPONSE_CODE, &answer.status);
    if (code != CURLE_OK && !answer.broken) answer.broken = failed(code, words, request.url);
    easy_setopt_(exchange.handle, CURLOPT_ERRORBUFFER, nullptr);
    slist_free_all_(headers);
    const std::lock_guard lock(mutex_);
    idle_.push_back(exchange.handle);
    return answer;
}

}  // namespace

Result<std::shared_ptr<HttpClient>> HttpClient::load() {
    auto library = DynamicLibrary::open("libcurl.so.4");
    if (!library) library = DynamicLibrary::open("libcurl-gnutls.so.4");
    if (!library) {
        Error error = library.error();
        error.hint = "install libcurl4 (Debian), or libcurl";
        return error;
    }
    auto curl = std::make_shared<Curl>(std::move(*library));
    SIDESTEP_CHECK(curl->bind());
    return std::shared_ptr<HttpClient>(std::move(curl));
}

#endif

}  // namespace sidestep::driver
