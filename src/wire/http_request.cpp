#include "wire/http_request.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::wire {

std::optional<Asked> parse_request(std::string_view came) {
    const std::size_t end = std::min(came.find("\r\n\r\n"), came.find("\n\n"));
    if (end == std::string_view::npos) return std::nullopt;
    std::string_view line = came.substr(0, came.find('\n'));
    if (line.ends_with('\r')) line.remove_suffix(1);
    constexpr std::string_view method = "GET ";
    if (!line.starts_with(method)) return Asked::nonsense;
    line.remove_prefix(method.size());
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos) return Asked::nonsense;
    const std::string_view path = line.substr(0, blank), version = line.substr(blank + 1);
    if (version != "HTTP/1.1" && version != "HTTP/1.0") return Asked::nonsense;
    if (!path.starts_with('/')) return Asked::nonsense;
    return path == "/metrics" ? Asked::page : Asked::elsewhere;
}

std::string http_answer(Asked asked, const std::string& page) {
    const bool good = asked == Asked::page;
    const char* status = good ? "200 OK" : asked == Asked::elsewhere ? "404 Not Found" : "400 Bad Request";
    const char* type = good ? "text/plain; version=0.0.4; charset=utf-8" : "text/plain; charset=utf-8";
    const std::string body = good ? page : std::string("there is GET /metrics, and nothing else\n");
    return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                       status, type, body.size(), body);
}

}  // namespace sidestep::wire
