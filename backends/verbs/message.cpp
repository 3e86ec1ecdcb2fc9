#include "backends/verbs/message.hpp"

#include <algorithm>

#include "backends/verbs/numbers.hpp"

namespace sidestep::backends::verbs {

void to_bytes(const Head& head, unsigned char* to) {
    std::fill(to, to + head_bytes, static_cast<unsigned char>(0));
    to[0] = static_cast<unsigned char>(head.kind);
    put_number(to + 2, head.credits);
    put_number(to + 4, head.offer);
    put_number(to + 8, head.address);
    put_number(to + 16, head.key);
}

Result<Head> parse_head(const unsigned char* bytes) {
    Head head;
    head.kind = static_cast<Head::Kind>(bytes[0]);
    head.credits = get_number<std::uint16_t>(bytes + 2);
    head.offer = get_number<std::uint16_t>(bytes + 4);
    head.address = get_number<std::uint64_t>(bytes + 8);
    head.key = get_number<std::uint32_t>(bytes + 16);
    const bool known = head.kind >= Head::Kind::frame && head.kind <= Head::Kind::credits;
    if (!known || bytes[1] != 0 || get_number<std::uint16_t>(bytes + 6) != 0 ||
        get_number<std::uint32_t>(bytes + 20) != 0)
        return Error{ErrorCode::io_error, "the other machine sent what is no message", "verbs", {}};
    return head;
}

}  // namespace sidestep::backends::verbs
