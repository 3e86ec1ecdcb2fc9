// What a request over HTTP asks for, as far as one page goes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sidestep::wire {

enum class Asked {
    page,       // GET /metrics
    elsewhere,  // GET of something else
    nonsense,   // another method, or no HTTP/1
};

// Nothing while the request's head is not all there. What follows the head is not looked at.
std::optional<Asked> parse_request(std::string_view came);

// The whole answer, after which the connection is closed. `page`: the text of the page, for Asked::page alone.
std::string http_answer(Asked asked, const std::string& page);

}  // namespace sidestep::wire
