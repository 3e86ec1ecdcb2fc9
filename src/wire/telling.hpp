// What a node tells of itself to whoever has the key: texts, in parts that fit into messages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::wire {

struct Hello;

enum class Subject : std::uint8_t {
    topology = 1,  // the JSON of docs/topology-format.md
    facts,         // a line each: "kernel=Linux 6.12"
    clock,         // nanoseconds since 1970, in digits
};

// Longer texts are refused by both ends.
constexpr Bytes longest_telling = Bytes{16} << 20;
// A node keeps its last answers, so a part is no longer than it has to be.
constexpr Bytes telling_part = Bytes{32} << 10;

// A part of the text from an offset on. The text is made anew at offset 0, and where its last part has been told.
struct TellRequest {
    Subject subject = Subject::topology;
    std::uint64_t offset = 0;
};
std::string to_body(const TellRequest& request);
Result<TellRequest> parse_tell(std::string_view body);
struct Told {
    std::uint64_t size = 0;  // of the whole text
    std::string part;
};
std::string to_body(const Told& told);
Result<Told> parse_told(std::string_view body);

// Makes the text of a subject. The socket is the one that leads to whoever asks.
using Teller = std::function<Result<std::string>(Subject subject, int socket)>;

// The texts that one client is being told. One thread at a time.
class Telling {
public:
    // The answer to a request.
    Result<std::string> answer(const Teller& teller, std::string_view body, int socket);

private:
    std::map<Subject, std::string> texts_;  // those of which a part is still to be asked for
};

// Asks for all parts of a text, one after the other.
Result<std::string> ask_for(Subject subject,
                            const std::function<Result<std::string>(const std::string& body)>& ask);

// Facts by name, a line each. Characters that are not printable are replaced, since a terminal may obey them.
using Facts = std::map<std::string, std::string, std::less<>>;
std::string to_text(const Facts& facts);
Facts parse_facts(std::string_view text);

}  // namespace sidestep::wire
