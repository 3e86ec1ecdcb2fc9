#include "backends/s3/store.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::backends::s3 {
namespace {

using driver::HttpAnswer;

constexpr int most_tries = 5;
constexpr std::chrono::milliseconds first_pause{100};  // doubled each time
constexpr std::chrono::milliseconds look_at_stop{20};
// The SHA-256 of no bytes, which is what a GET sends.
constexpr const char* empty_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

bool is_passing(const HttpAnswer& answer) {
    if (answer.broken)
        return answer.broken->code != ErrorCode::cancelled && answer.broken->code != ErrorCode::mismatch;
    return answer.status >= 500 || answer.status == 429 || answer.status == 408;
}

std::string code_of(const HttpAnswer& answer) {
    return element(answer.body, "Code").value_or("");
}

std::string words_of(const HttpAnswer& answer) {
    if (answer.broken) return answer.broken->message;
    const std::string code = code_of(answer);
    const auto message = element(answer.body, "Message");
    return fmt::format("HTTP {}{}{}{}", answer.status, code.empty() ? "" : ", ", code,
                       message ? ": " + *message : "");
}

// The region that the bucket is in, where the answer says that it was asked in another one.
std::string right_region(const HttpAnswer& answer) {
    const std::string code = code_of(answer);
    const auto header = answer.headers.find("x-amz-bucket-region");
    const bool elsewhere =
        answer.status == 301 || answer.status == 307 || code == "AuthorizationHeaderMalformed";
    if (!elsewhere) return {};
    if (header != answer.headers.end()) return header->second;
    return element(answer.body, "Region").value_or("another one");
}

// What an answer that is no success means.
Error refusal(const HttpAnswer& answer, const Name& name, const Settings& settings) {
    const std::string where = name.to_string();
    const std::string code = code_of(answer);
    if (answer.broken) {
        Error error = *answer.broken;
        error.message = fmt::format("{} was not read: {}", where, error.message);
        return error;
    }
    if (const std::string region = right_region(answer); !region.empty())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the bucket {} is in the region {}, and was asked for in {}", name.bucket,
                                 region, settings.region),
                     where, fmt::format("set AWS_REGION={}", region)};
    if (code == "NoSuchBucket")
        return Error{ErrorCode::not_found, fmt::format("there is no bucket {}", name.bucket), where,
                     settings.endpoint.empty() ? "check its name" : "check its name, and AWS_ENDPOINT_URL"};
    if (answer.status == 404)
        return Error{ErrorCode::not_found, fmt::format("there is no {}", where), where, "check the name"};
    if (answer.status == 401 || answer.status == 403 || code == "ExpiredToken")
        return Error{ErrorCode::permission_denied, fmt::format("{} is refused: {}", where, words_of(answer)),
                     where,
                     code == "AccessDenied" ? "ask for s3:GetObject and s3:ListBucket"
                                            : "check the credentials, and the clock of this machine"};
    if (answer.status == 412)
        return Error{ErrorCode::mismatch,
                     fmt::format("{} changed while it was read: another object has its name", where), where,
                     "begin again when nobody writes it"};
    if (answer.status == 416)
        return Error{ErrorCode::end_of_file,
                     fmt::format("{} ends before the bytes that were asked for", where),
                     where,
                     {}};
    return Error{ErrorCode::io_error, fmt::format("{} was not read: {}", where, words_of(answer)), where, {}};
}

// The size in "bytes 0-0/1234".
std::optional<Bytes> size_in(const HttpAnswer& answer) {
    const auto found = answer.headers.find("content-range");
    if (found == answer.headers.end()) return std::nullopt;
    const std::string& range = found->second;
    const std::size_t slash = range.find('/');
    if (slash == std::string::npos) return std::nullopt;
    Bytes size = 0;
    const char* const last = range.data() + range.size();
    const auto [end, error] = std::from_chars(range.data() + slash + 1, last, size);
    if (error != std::errc{} || end != last) return std::nullopt;
    return size;
}

// What an answer says of its bytes, where they are not those of the object from `first` on.
std::optional<Error> other_range(const HttpAnswer& answer, const Object& object, Bytes first) {
    const auto found = answer.headers.find("content-range");
    const bool told = found != answer.headers.end();
    if (told && found->second.starts_with(fmt::format("bytes {}-", first)) && size_in(answer) == object.size)
        return std::nullopt;
    return Error{ErrorCode::mismatch,
                 fmt::format("bytes from {} on, of {}, were asked for, and the answer {}", first, object.size,
                             told ? "is " + found->second : "does not say which it holds"),
                 object.name.to_string(), "ask the store itself, if a proxy or a cache answers for it"};
}

std::string path_of(const Name& name) {
    return "/" + escaped(name.key, true);
}

}  // namespace

Result<Store::Access> Store::access() {
    const std::lock_guard lock(mutex_);
    if (!access_) {
        SIDESTEP_TRY(Settings settings, read_settings());
        SIDESTEP_TRY(auto client, driver::HttpClient::load());
        access_ = Access{std::move(settings), std::move(client)};
        if (stopped_.load()) access_->client->stop();
    }
    return *access_;
}

void Store::stop() {
    stopped_.store(true);
    const std::lock_guard lock(mutex_);
    if (access_) access_->client->stop();
}

std::optional<std::string> Store::repeated() const {
    const std::lock_guard lock(mutex_);
    if (repeats_ == 0) return std::nullopt;
    return fmt::format("{} request{} to the store {} made again, the last one after: {}", repeats_,
                       repeats_ == 1 ? "" : "s", repeats_ == 1 ? "was" : "were", last_reason_);
}

driver::HttpRequest Store::request_of(const Access& access, const Ask& ask) const {
    const Settings& settings = access.settings;
    const std::string bucket = escaped(ask.name.bucket, false);
    // A bucket whose name holds a dot fits no certificate for names below Amazon's.
    const bool in_path = !settings.endpoint.empty() || ask.name.bucket.find('.') != std::string::npos;
    const std::string amazon = fmt::format("s3.{}.amazonaws.com", settings.region);
    driver::HttpRequest request;
    if (in_path)
        request.url = fmt::format(
            "{}/{}{}", settings.endpoint.empty() ? "https://" + amazon : settings.endpoint, bucket, ask.path);
    else
        request.url = fmt::format("https://{}.{}{}", bucket, amazon, ask.path);
    if (!ask.query.empty()) request.url += "?" + ask.query;
    request.headers = ask.headers;
    request.headers.push_back(fmt::format("x-amz-content-sha256: {}", empty_sha256));
    if (!settings.token.empty()) request.headers.push_back("x-amz-security-token: " + settings.token);
    request.signature = fmt::format("aws:amz:{}:s3", settings.region);
    request.user = fmt::format("{}:{}", settings.key, settings.secret);
    request.to = ask.to;
    request.room = ask.room;
    request.check = ask.check;
    return request;
}

Result<void> Store::wait_to_repeat(int tries, const std::string& why) {
    const auto until = std::chrono::steady_clock::now() + first_pause * (1 << (tries - 1));
    {
        const std::lock_guard lock(mutex_);
        ++repeats_;
        last_reason_ = why;
    }
    while (std::chrono::steady_clock::now() < until) {
        if (stopped_.load())
            return Error{ErrorCode::cancelled, "nobody waits for the store any more", "s3", {}};
        std::this_thread::sleep_for(look_at_stop);
    }
    return {};
}

Result<HttpAnswer> Store::ask(const Ask& asked) {
    SIDESTEP_TRY(const Access access, this->access());
    for (int tries = 1;; ++tries) {
        HttpAnswer answer = access.client->get(request_of(access, asked));
        // Bytes have arrived: whoever asked goes on behind them.
        if (!is_passing(answer) || answer.received > 0) return answer;
        if (tries == most_tries) {
            Error error = refusal(answer, asked.name, access.settings);
            error.message += fmt::format(" (asked {} times)", most_tries);
            return error;
        }
        SIDESTEP_CHECK(wait_to_repeat(tries, words_of(answer)));
    }
}

Result<std::optional<Object>> Store::look(const Name& name) {
    Ask asked{name, path_of(name)};
    asked.headers = {"range: bytes=0-0"};
    char first = 0;
    asked.to = &first;
    asked.room = 1;
    SIDESTEP_TRY(HttpAnswer answer, ask(asked));
    SIDESTEP_TRY(const Access access, this->access());
    if (answer.status == 404 && code_of(answer) != "NoSuchBucket") return std::optional<Object>{};
    Object object{name, 0, answer.headers["etag"]};
    // Of an object without bytes no range can be asked for; all of it can be.
    if (answer.status == 416) {
        asked.headers.clear();
        SIDESTEP_TRY(answer, ask(asked));
        object.etag = answer.headers["etag"];
        if (answer.status == 200 && answer.body.empty()) return std::optional(std::move(object));
    }
    if (answer.broken || answer.status != 206) {
        if (answer.status == 200)
            return Error{ErrorCode::unsupported,
                         fmt::format("the store of {} answers no ranges", name.to_string()),
                         name.to_string(),
                         {}};
        return refusal(answer, name, access.settings);
    }
    const auto size = size_in(answer);
    if (!size || object.etag.empty())
        return Error{ErrorCode::io_error,
                     fmt::format("the store did not say how large {} is, or which version", name.to_string()),
                     name.to_string(),
                     {}};
    // If-Match never holds for one: every answer would say that the object has been replaced.
    if (object.etag.starts_with("W/"))
        return Error{
            ErrorCode::unsupported,
            fmt::format("the store tells the version of {} by a weak ETag, {}: its parts cannot be asked for",
                        name.to_string(), object.etag),
            name.to_string(), "ask the store itself, if a proxy or a cache answers for it"};
    object.size = *size;
    return std::optional(std::move(object));
}

Result<void> Store::read(const Object& object, Bytes offset, char* to, Bytes size) {
    Bytes done = 0;
    for (int tries = 0; done < size;) {
        Ask asked{object.name, path_of(object.name)};
        asked.headers = {fmt::format("range: bytes={}-{}", offset + done, offset + size - 1),
                         "if-match: " + object.etag};
        asked.to = to + done;
        asked.room = size - done;
        asked.check = [&object, first = offset + done](const HttpAnswer& answer) {
            return other_range(answer, object, first);
        };
        SIDESTEP_TRY(const HttpAnswer answer, ask(asked));
        done += answer.received;
        if (done == size) break;
        if (answer.received > 0) {
            SIDESTEP_CHECK(wait_to_repeat(1, answer.broken ? words_of(answer) : "the answer was too short"));
            continue;
        }
        if (!answer.broken && answer.status == 206 && ++tries < most_tries) continue;  // of no bytes
        SIDESTEP_TRY(const Access access, this->access());
        return refusal(answer, object.name, access.settings);
    }
    return {};
}

Result<std::vector<std::string>> Store::names_in(const Name& folder) {
    std::string prefix = folder.key;
    if (!prefix.empty() && !prefix.ends_with('/')) prefix += '/';
    std::vector<std::string> names;
    bool any = false;
    for (std::string after;;) {
        Ask asked{folder, "/"};
        if (!after.empty()) asked.query = fmt::format("continuation-token={}&", escaped(after, false));
        asked.query +=
            fmt::format("delimiter=%2F&encoding-type=url&list-type=2&prefix={}", escaped(prefix, false));
        SIDESTEP_TRY(const HttpAnswer answer, ask(asked));
        if (answer.broken || answer.status != 200) {
            SIDESTEP_TRY(const Access access, this->access());
            return refusal(answer, folder, access.settings);
        }
        any |= answer.body.find("<CommonPrefixes>") != std::string::npos;
        for (const std::string& text : elements(answer.body, "Key")) {
            any = true;
            const std::string key = unescaped(text);
            if (key.size() <= prefix.size() || !key.starts_with(prefix) || key[prefix.size()] == '.')
                continue;
            names.push_back(key.substr(prefix.size()));
        }
        after = element(answer.body, "NextContinuationToken").value_or("");
        if (after.empty() || element(answer.body, "IsTruncated") != "true") break;
    }
    if (!any && !prefix.empty())
        return Error{ErrorCode::not_found,
                     fmt::format("there is no {}, and nothing below it", folder.to_string()),
                     folder.to_string(), "check the name"};
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace sidestep::backends::s3
