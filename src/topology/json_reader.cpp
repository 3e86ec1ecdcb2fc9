// Reading of the own JSON format. Files come from anywhere: whatever they hold, the answer is a Topology or
// an Error with the place in the file.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include <sidestep/topology.hpp>

#include "base/exception_words.hpp"
#include "base/try.hpp"
#include "topology/json_format.hpp"
#include "topology/kinds.hpp"
#include "topology/text_file_reader.hpp"

namespace sidestep {

namespace {

using nlohmann::json;

// The deepest member the format has is at depth 3; unknown members may nest a bit more.
constexpr int deepest_json = 64;
// 100,000 GPUs in DGX H100s take 245 MB, and reading a file takes nine times its size in memory.
constexpr std::size_t largest_file = std::size_t{512} << 20;

Error wrong(const std::string& element, std::string message, std::string hint = "") {
    if (hint.empty()) hint = "docs/topology-format.md describes the format";
    return Error{ErrorCode::invalid_argument, std::move(message), element, std::move(hint)};
}

// Reads the members of one element; a problem becomes the first error and later reads do nothing.
class MemberReader {
public:
    MemberReader(const json& object, std::string element) : object_(object), element_(std::move(element)) {
        if (!object_.is_object())
            fail("", fmt::format("is {}, where an object is expected", object_.type_name()));
    }

    std::string text(const char* member, bool required) {
        const json* value = get(member, required);
        if (value == nullptr) return {};
        if (!value->is_string()) return fail_type(member, *value, "a string"), std::string();
        return value->get<std::string>();
    }

    bool boolean(const char* member, bool otherwise) {
        const json* value = get(member, false);
        if (value == nullptr) return otherwise;
        if (!value->is_boolean()) return fail_type(member, *value, "true or false"), otherwise;
        return value->get<bool>();
    }

    // A whole number; `otherwise` stands for one that is left out, nullopt makes it a must.
    int integer(const char* member, std::optional<int> otherwise) {
        const json* value = get(member, !otherwise);
        if (value == nullptr) return otherwise.value_or(0);
        if (!value->is_number_integer()) return fail_type(member, *value, "a whole number"), 0;
        const bool too_large = value->is_number_unsigned() &&
                               value->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<int>::max()};
        if (too_large ||
            (!value->is_number_unsigned() && value->get<std::int64_t>() < std::numeric_limits<int>::min())) {
            fail(member, fmt::format("is {}, which is out of range", value->dump()));
            return 0;
        }
        return value->get<int>();
    }

    Bytes bytes(const char* member) {
        const json* value = get(member, false);
        if (value == nullptr) return 0;
        if (!value->is_number_unsigned()) return fail_type(member, *value, "a number of bytes"), 0;
        return value->get<Bytes>();
    }

    // An object of strings.
    Properties properties(const char* member) {
        const json* value = get(member, false);
        if (value == nullptr) return {};
        if (!value->is_object()) return fail_type(member, *value, "an object"), Properties();
        Properties properties;
        for (const auto& [name, text] : value->items()) {
            if (!text.is_string()) {
                fail(fmt::format("{}.{}", member, name), "is not a string");
                return {};
            }
            properties.emplace(name, text.get<std::string>());
        }
        return properties;
    }

    double number(const char* member, std::optional<double> otherwise) {
        const json* value = get(member, !otherwise);
        if (value == nullptr) return otherwise.value_or(0);
        if (!value->is_number()) return fail_type(member, *value, "a number"), 0;
        return value->get<double>();
    }

    // Records a failure of a member that was read well but makes no sense.
    void fail(const std::string& member, const std::string& message, std::string hint = "") {
        if (error_) return;
        const std::string where =
            member.empty() ? element_ : element_ + (element_.empty() ? "" : ".") + member;
        error_ =
            wrong(where, fmt::format("{} {}", where.empty() ? "the file" : where, message), std::move(hint));
    }

    Result<void> result() const { return error_ ? Result<void>(*error_) : Result<void>(); }

private:
    const json* get(const char* member, bool required) {
        if (error_) return nullptr;
        const auto found = object_.find(member);
        if (found != object_.end()) return &*found;
        if (required) fail(member, "is missing");
        return nullptr;
    }

    void fail_type(const char* member, const json& value, const char* expected) {
        // The value is quoted where it is short; a nested one may be anything.
        const bool plain = value.is_number() || value.is_boolean();
        fail(member,
             fmt::format("is {}, where {} is expected", plain ? value.dump() : value.type_name(), expected));
    }

    const json& object_;
    std::string element_;
    std::optional<Error> error_;
};

using Names = std::unordered_map<std::string, DeviceId>;

Result<Device> read_device(const json& element, const std::string& where) {
    MemberReader reader(element, where);
    Device device;
    device.name = reader.text("name", true);
    const std::string kind = reader.text("kind", true);
    device.index = reader.integer("index", std::nullopt);
    device.model = reader.text("model", false);
    device.bus_id = reader.text("bus_id", false);
    device.numa_node = reader.integer("numa_node", -1);
    device.memory = reader.bytes("memory");
    device.node = reader.integer("node", 0);
    device.acs_redirect = reader.boolean("acs_redirect", false);
    device.properties = reader.properties("properties");
    if (const auto known = topology::parse_device_kind(kind)) {
        device.kind = *known;
    } else {
        reader.fail("kind", fmt::format("is \"{}\", which is no kind of device", kind),
                    "the kinds are: " + topology::device_kind_names());
    }
    SIDESTEP_CHECK(reader.result());
    return device;
}

// The device that a member names.
DeviceId read_end(MemberReader& reader, const char* member, const Names& names) {
    const std::string name = reader.text(member, true);
    const auto found = names.find(name);
    if (found != names.end()) return found->second;
    reader.fail(member, fmt::format("names \"{}\", and no device is called that", name));
    return 0;
}

Result<Link> read_link(const json& element, const std::string& where, const Names& names) {
    MemberReader reader(element, where);
    Link link;
    link.a = read_end(reader, "a", names);
    link.b = read_end(reader, "b", names);
    const std::string kind = reader.text("kind", true);
    link.width = reader.integer("width", 1);
    link.gb_per_s = reader.number("gb_per_s", std::nullopt);
    link.latency_us = reader.number("latency_us", 0);
    if (const auto known = topology::parse_link_kind(kind)) {
        link.kind = *known;
    } else {
        reader.fail("kind", fmt::format("is \"{}\", which is no kind of link", kind),
                    "the kinds are: " + topology::link_kind_names());
    }
    SIDESTEP_CHECK(reader.result());
    return link;
}

Result<Topology::Parts::Peer> read_peer(const json& element, const std::string& where, const Names& names,
                                        const std::vector<Device>& devices) {
    MemberReader reader(element, where);
    Topology::Parts::Peer peer;
    for (const auto& [member, index] : {std::pair{"from", &peer.from}, std::pair{"to", &peer.to}}) {
        const DeviceId id = read_end(reader, member, names);
        if (!reader.result().ok()) break;
        if (devices[id].kind != DeviceKind::gpu)
            reader.fail(member, fmt::format("names {}, which is no gpu", devices[id].name));
        *index = devices[id].index;
    }
    peer.access.allowed = reader.boolean("allowed", false);
    peer.access.atomics = reader.boolean("atomics", false);
    peer.access.reason = reader.text("reason", false);
    peer.access.remedy = reader.text("remedy", false);
    SIDESTEP_CHECK(reader.result());
    return peer;
}

// Calls read(element, "links[3]") for every element of a list that may be left out.
template <typename Read>
Result<void> each(const json& root, const char* member, Read read) {
    const auto found = root.find(member);
    if (found == root.end()) return {};
    if (!found->is_array()) {
        return wrong(member, fmt::format("{} is {}, where a list is expected", member, found->type_name()));
    }
    std::size_t position = 0;
    for (const json& element : *found)
        SIDESTEP_CHECK(read(element, fmt::format("{}[{}]", member, position++)));
    return {};
}

Result<void> check_marks(const json& root) {
    MemberReader reader(root, "");
    const std::string format = reader.text("format", true);
    const int version = reader.integer("version", std::nullopt);
    SIDESTEP_CHECK(reader.result());
    if (format != topology::json_format) {
        return wrong("format", fmt::format("format is \"{}\", where \"{}\" is expected", format,
                                           topology::json_format));
    }
    if (version != topology::json_version) {
        return wrong(
            "version",
            fmt::format("version is {}, and this program reads {}", version, topology::json_version),
            version > topology::json_version ? "a newer program wrote the file: update this one" : "");
    }
    return {};
}

Result<Topology::Parts> read_parts(const json& root) {
    if (!root.is_object())
        return wrong("", fmt::format("the file holds {}, where an object is expected", root.type_name()));
    SIDESTEP_CHECK(check_marks(root));
    Topology::Parts parts;
    parts.emulated = true;
    MemberReader reader(root, "");
    parts.name = reader.text("name", false);
    parts.properties = reader.properties("properties");
    const std::string peers = reader.text("pcie_peers", false);
    if (const auto known = topology::parse_path_class(peers.empty() ? "self" : peers)) {
        parts.pcie_peers = *known;
    } else {
        reader.fail("pcie_peers", fmt::format("is \"{}\", which is no class of paths", peers),
                    "the classes are: " + topology::path_class_names());
    }
    SIDESTEP_CHECK(reader.result());

    Names names;
    SIDESTEP_CHECK(each(root, "devices", [&](const json& element, const std::string& where) -> Result<void> {
        SIDESTEP_TRY(Device device, read_device(element, where));
        const auto [named, is_new] = names.emplace(device.name, static_cast<DeviceId>(parts.devices.size()));
        if (!is_new) {
            return wrong(where + ".name",
                         fmt::format("the name {} is taken by devices[{}]", device.name, named->second));
        }
        parts.devices.push_back(std::move(device));
        return {};
    }));
    SIDESTEP_CHECK(each(root, "links", [&](const json& element, const std::string& where) -> Result<void> {
        SIDESTEP_TRY(const Link link, read_link(element, where, names));
        parts.links.push_back(link);
        return {};
    }));
    SIDESTEP_CHECK(each(root, "peers", [&](const json& element, const std::string& where) -> Result<void> {
        SIDESTEP_TRY(Topology::Parts::Peer peer, read_peer(element, where, names, parts.devices));
        parts.peers.push_back(std::move(peer));
        return {};
    }));
    SIDESTEP_CHECK(each(root, "notes", [&](const json& element, const std::string& where) -> Result<void> {
        if (!element.is_string()) return wrong(where, where + " is not a string");
        parts.notes.push_back(element.get<std::string>());
        return {};
    }));
    return parts;
}

// How deep lists and objects nest, of a text that may be no JSON. The parser's own callback could tell, but
// parsing with one looks at every element of a list again for each that ends (nlohmann-json 3.11).
int deepest_nesting(std::string_view text) {
    int depth = 0;
    int max = 0;
    bool quoted = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (quoted && c == '\\') ++at;
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == '[' || c == '{') max = std::max(max, ++depth);
        if (c == ']' || c == '}') --depth;
    }
    return max;
}

// Exceptions of the JSON library stay in here.
Result<Topology::Parts> parse(std::string_view text) {
    try {
        if (deepest_nesting(text) > deepest_json)
            return wrong("", fmt::format("the file nests more than {} levels deep", deepest_json));
        return read_parts(json::parse(text.begin(), text.end()));
    } catch (const json::parse_error& error) {
        return wrong(fmt::format("byte {}", error.byte),
                     fmt::format("the file is no JSON: {}", base::words_of(error)));
    } catch (const json::exception& error) {
        return wrong("", fmt::format("the file cannot be read as JSON: {}", base::words_of(error)));
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "there is no memory to read the topology", "", ""};
    }
}

}  // namespace

Result<Topology> Topology::from_json(std::string_view text, const std::string& where) {
    auto parts = parse(text);
    if (!parts.ok()) return topology::at_file(parts.error(), where);
    auto topology = create(std::move(*parts));
    if (!topology.ok()) return topology::at_file(topology.error(), where);
    return topology;
}

Result<Topology> Topology::load(const std::string& path) {
    SIDESTEP_TRY(const std::string text, topology::read_text_file(path, largest_file));
    return from_json(text, path);
}

}  // namespace sidestep
