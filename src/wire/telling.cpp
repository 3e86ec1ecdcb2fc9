#include "wire/telling.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/message.hpp"
#include "base/try.hpp"
#include "wire/messages.hpp"

namespace sidestep::wire {
namespace {

using base::MessageReader;
using base::MessageWriter;

constexpr std::size_t most_facts = 4096;

Error senseless(const char* what) {
    return Error{ErrorCode::io_error, fmt::format("the other machine sent something that is no {}", what),
                 "control", "use one version of sidestep on both machines"};
}

Error too_long(Bytes size) {
    return Error{ErrorCode::unsupported,
                 fmt::format("what there is to tell has {}, and at most {} are told", format_bytes(size),
                             format_bytes(longest_telling)),
                 "node",
                 {}};
}

std::string printable(std::string_view text) {
    std::string result(text);
    for (char& c : result)
        if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
    return result;
}

}  // namespace

std::string to_body(const TellRequest& request) {
    return MessageWriter().put(static_cast<std::uint8_t>(request.subject)).put(request.offset).take();
}

Result<TellRequest> parse_tell(std::string_view body) {
    MessageReader reader(body);
    const auto subject = reader.number<std::uint8_t>();
    const auto offset = reader.number<std::uint64_t>();
    if (!reader.exact() || subject < 1 || subject > static_cast<std::uint8_t>(Subject::clock))
        return senseless("question about a machine");
    return TellRequest{static_cast<Subject>(subject), offset};
}

std::string to_body(const Told& told) {
    return MessageWriter().put(told.size).put_text(told.part).take();
}

Result<Told> parse_told(std::string_view body) {
    MessageReader reader(body);
    Told told;
    told.size = reader.number<std::uint64_t>();
    told.part = reader.text(longest_message);
    if (!reader.exact()) return senseless("answer about a machine");
    return told;
}

Result<std::string> Telling::answer(const Teller& teller, std::string_view body, int socket) {
    SIDESTEP_TRY(const TellRequest request, parse_tell(body));
    if (!teller) return Error{ErrorCode::unsupported, "this node does not tell of itself", "node", {}};
    if (request.offset == 0 || !texts_.contains(request.subject)) {
        SIDESTEP_TRY(std::string text, teller(request.subject, socket));
        if (text.size() > longest_telling) return too_long(text.size());
        texts_[request.subject] = std::move(text);
    }
    const auto found = texts_.find(request.subject);
    if (request.offset > found->second.size())
        return Error{ErrorCode::invalid_argument, "there is no such part of what the node tells", "node", {}};
    Told told{found->second.size(), found->second.substr(request.offset, telling_part)};
    if (request.offset + told.part.size() == told.size) texts_.erase(found);
    return to_body(told);
}

Result<std::string> ask_for(Subject subject,
                            const std::function<Result<std::string>(const std::string& body)>& ask) {
    std::string text;
    std::uint64_t size = 0;
    do {
        SIDESTEP_TRY(const std::string answer, ask(to_body(TellRequest{subject, text.size()})));
        SIDESTEP_TRY(const Told told, parse_told(answer));
        if (told.size > longest_telling) return too_long(told.size);
        if (text.empty()) size = told.size;
        // A part without bytes would be asked for again and again.
        if (told.size != size || told.part.size() > size - text.size() ||
            (told.part.empty() && text.size() < size))
            return senseless("part of what a node tells");
        text += told.part;
    } while (text.size() < size);
    return text;
}

std::string to_text(const Facts& facts) {
    std::string text;
    for (const auto& [name, value] : facts) text += fmt::format("{}={}\n", printable(name), printable(value));
    return text;
}

Facts parse_facts(std::string_view text) {
    Facts facts;
    while (!text.empty() && facts.size() < most_facts) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
        const auto sign = line.find('=');
        if (sign == std::string_view::npos) continue;
        facts.insert_or_assign(printable(line.substr(0, sign)), printable(line.substr(sign + 1)));
    }
    return facts;
}

}  // namespace sidestep::wire
