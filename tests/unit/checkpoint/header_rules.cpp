#include "tests/unit/checkpoint/header_rules.hpp"

namespace sidestep {
namespace {

HeaderRule taken(std::string what, std::string file) {
    return {std::move(what), std::move(file), true, true, {}};
}

HeaderRule refused(std::string what, std::string file, std::string words) {
    return {std::move(what), std::move(file), false, false, std::move(words)};
}

// Header text in a file with four bytes of data.
std::string text(std::string_view header, std::size_t data = 4) {
    return safetensors_file(header, data);
}

std::string two(const std::string& first, const std::string& second, std::size_t data) {
    std::string header = "{";
    header += first + "," + second + "}";
    return safetensors_file(header, data);
}

const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
const std::string b = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})";

}  // namespace

std::vector<HeaderRule> length_rules() {
    return {
        refused("no byte", "", "less than the length"),
        refused("seven bytes", "1234567", "less than the length"),
        refused("a length of 100,000,001", number_bytes(100'000'001, 8) + "{}", "more than 100000000"),
        refused("a length of 2^64 - 1", std::string(8, '\xff') + "{}", "more than 100000000"),
        refused("a length beyond the file", number_bytes(3, 8) + "{}", "would end at byte 11"),
        refused("a length of 100,000,000 in a small file", number_bytes(100'000'000, 8) + "{}",
                "would end at"),
        refused("a length of 0", number_bytes(0, 8), "no JSON"),
        refused("a length of 1", number_bytes(1, 8) + "{}", "no JSON"),
        taken("an empty object", text("{}", 0)),
        refused("bytes after an empty object", text("{}", 1), "1 bytes more"),
    };
}

std::vector<HeaderRule> json_rules() {
    using namespace std::string_literals;
    return {
        taken("plain", one()),
        taken("blanks behind", text("{" + a + "}   \n\r\t ")),
        taken("blanks in front", text(" \t\r\n{" + a + "}")),
        refused("a form feed in front", text("\f{" + a + "}"), "no JSON"),
        refused("a byte order mark", text("\xEF\xBB\xBF{" + a + "}"), "byte order mark"),
        refused("a zero byte behind", text("{"s + a + "}\0"s), "zero byte"),
        refused("a zero byte and more behind", text("{"s + a + "}\0{}"s), "zero byte"),
        refused("text behind", text("{" + a + "}x"), "no JSON"),
        refused("a second object", text("{" + a + "}{}"), "no JSON"),
        refused("a list", text("[]", 0), "holds a list"),
        refused("a number", text("1", 0), "holds no object"),
        refused("null", text("null", 0), "holds no object"),
        refused("no end", text("{" + a), "no JSON"),
        refused("a comma too many", text("{" + a + ",}"), "no JSON"),
        refused("a comma too many in a list", with(R"("F32")", "[1,]", "[0,4]", 4), "no JSON"),
        refused("a comment", text("{/**/" + a + "}"), "no JSON"),
        refused("single quotes", text("{'a':{}}", 0), "no JSON"),
        refused("NaN", one(R"("x":NaN,)"), "no JSON"),
        refused("no UTF-8", text("{\"\xff\":{}}", 0), "no UTF-8"),
        refused("a surrogate in UTF-8", text("{\"\xED\xA0\x80\":{}}", 0), "no UTF-8"),
        refused("a long form in UTF-8", text("{\"\xC0\x80\":{}}", 0), "no UTF-8"),
        refused("half a character", text("{\"\xE2\x82\":{}}", 0), "no UTF-8"),
        taken("UTF-8 in a name", text("{\"\xE2\x82\xAC\xF0\x9F\x98\x80\":{\"dtype\":\"F32\",\"shape\":[1],"
                                      "\"data_offsets\":[0,4]}}")),
        refused("half a surrogate pair",
                text(R"({"\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"), "no JSON"),
        refused("half a surrogate pair that does not matter", one(R"("x":"\udc00",)"), "no JSON"),
        taken("a surrogate pair",
              text(R"({"\ud83d\ude00":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})")),
        refused("a control character", text("{\"\x01\":{}}", 0), "no JSON"),
        taken("a name of a zero byte",
              text(R"({"\u0000":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})")),
        taken("an empty name", text(R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})")),
        taken("125 lists in one another", nested(125)),
        refused("126 lists in one another", nested(126), "in one another"),
        refused("a million lists", text(std::string(1'000'000, '['), 0), "holds a list"),
        refused("a million lists in a member", nested(1'000'000), "in one another"),
        refused("a number beyond a double", one(R"("x":1e999,)"), "no JSON"),
        taken("a whole number beyond 64 bits that does not matter",
              one(R"("x":123456789012345678901234567890,)")),
    };
}

std::vector<HeaderRule> entry_rules() {
    const std::string f32 = R"("F32")";
    return {
        taken("members that nobody knows", one(R"("x":1,"y":{"dtype":"Z","z":[[],{}]},"x":2,"w":null,)")),
        taken("another order", text(R"({"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}})")),
        refused("no dtype", text(R"({"a":{"shape":[1],"data_offsets":[0,4]}})"),
                "dtype of tensor \"a\" is missing"),
        refused("no shape", text(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})"),
                "shape of tensor \"a\" is missing"),
        refused("no offsets", text(R"({"a":{"dtype":"F32","shape":[1]}})"),
                "data_offsets of tensor \"a\" is missing"),
        refused("an empty entry", text(R"({"a":{}})", 0), "is missing"),
        refused("dtype twice", one(R"("dtype":"F32",)"), "dtype of tensor \"a\" appears twice"),
        refused("shape twice", one(R"("shape":[1],)"), "shape of tensor \"a\" appears twice"),
        refused("offsets twice", one(R"("data_offsets":[0,4],)"),
                "data_offsets of tensor \"a\" appears twice"),
        refused("an entry that is null", text(R"({"a":null})", 0), "tensor \"a\" is not an object"),
        refused("an entry that is text", text(R"({"a":"x"})", 0), "tensor \"a\" is not an object"),
        refused("an unknown dtype", with(R"("F33")", "[1]", "[0,4]", 4), "knows no dtype \"F33\""),
        refused("a dtype in small letters", with(R"("f32")", "[1]", "[0,4]", 4), "knows no dtype"),
        refused("a dtype that is a number", with("32", "[1]", "[0,4]", 4),
                "dtype of tensor \"a\" is not a string"),
        refused("a dtype that is null", with("null", "[1]", "[0,4]", 4), "is not a string"),
        refused("a dtype that is a list", with(R"(["F32"])", "[1]", "[0,4]", 4),
                "dtype of tensor \"a\" is a list"),
        refused("a shape that is null", with(f32, "null", "[0,4]", 4), "shape of tensor \"a\" is not a list"),
        refused("a shape that is an object", with(f32, "{}", "[0,4]", 4),
                "shape of tensor \"a\" is an object"),
        refused("a shape of a list", with(f32, "[[1]]", "[0,4]", 4), "something else than whole numbers"),
        refused("a shape of text", with(f32, R"(["1"])", "[0,4]", 4), "something else than whole numbers"),
        refused("a negative extent", with(f32, "[-1]", "[0,4]", 4), "something else than whole numbers"),
        refused("-0", with(f32, "[1]", "[-0,4]", 4), "something else than whole numbers"),
        refused("a fraction", with(f32, "[1.0]", "[0,4]", 4), "something else than whole numbers"),
        refused("an exponent", with(f32, "[1]", "[0,4e0]", 4), "something else than whole numbers"),
        refused("2^64", with(f32, "[18446744073709551616]", "[0,0]", 0), "something else than whole numbers"),
        refused("a leading zero", with(f32, "[01]", "[0,4]", 4), "no JSON"),
        refused("one offset", with(f32, "[1]", "[0]", 4), "holds less than two"),
        refused("three offsets", with(f32, "[1]", "[0,4,4]", 4), "holds more than two"),
        refused("offsets in an object", with(f32, "[1]", R"({"0":0,"1":4})", 4), "is an object"),
        taken("metadata", text(R"({"__metadata__":{"format":"pt","":"\u00e9"},)" + a + "}")),
        taken("metadata that is null", text(R"({"__metadata__":null,)" + a + "}")),
        taken("metadata with a key twice", text(R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}")),
        taken("metadata behind the tensors", text("{" + a + R"(,"__metadata__":{"k":"1"}})")),
        refused("metadata twice", text(R"({"__metadata__":{},"__metadata__":{}})", 0),
                "__metadata__ appears twice"),
        refused("metadata with a number", text(R"({"__metadata__":{"k":1}})", 0),
                "\"k\" of __metadata__ is not a string"),
        refused("metadata with an object", text(R"({"__metadata__":{"k":{}}})", 0),
                "\"k\" of __metadata__ is not a string"),
        refused("metadata with null", text(R"({"__metadata__":{"k":null}})", 0), "is not a string"),
        refused("metadata that is a list", text(R"({"__metadata__":[]})", 0),
                "__metadata__ is not an object"),
        refused("metadata that is text", text(R"({"__metadata__":"x"})", 0), "__metadata__ is not an object"),
    };
}

std::vector<HeaderRule> layout_rules() {
    const std::string f32 = R"("F32")";
    return {
        taken("a scalar", with(f32, "[]", "[0,4]", 4)),
        taken("no element", with(f32, "[0]", "[0,0]", 0)),
        taken("no element and others",
              two(R"("z":{"dtype":"F32","shape":[2,0],"data_offsets":[4,4]})", a + "," + b, 8)),
        taken("many axes", with(f32, "[1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]", 4)),
        taken("two, the second first", two(b, a, 8)),
        refused("a hole in front", with(f32, "[1]", "[4,8]", 8), "leave a hole"),
        refused("a hole", two(a, R"("c":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})", 12),
                "leave a hole"),
        refused("an overlap", two(a, R"("c":{"dtype":"F32","shape":[1],"data_offsets":[2,6]})", 6),
                "overlap"),
        refused("the same bytes twice", two(a, R"("c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4),
                "overlap"),
        refused("an end before its beginning", with(f32, "[1]", "[4,0]", 4), "leave a hole"),
        refused("backwards", two(a, R"("c":{"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4),
                "before it begins"),
        refused("no element in a hole", with(f32, "[0]", "[4,4]", 4), "leave a hole"),
        refused("too few bytes", with(f32, "[2]", "[0,4]", 4), "shape and F32 make 8"),
        refused("too many bytes", with(f32, "[1]", "[0,8]", 8), "shape and F32 make 4"),
        refused("elements beyond 64 bits", with(f32, "[4294967296,4294967296]", "[0,0]", 0), "more elements"),
        refused("elements beyond 64 bits, then none", with(f32, "[4294967296,4294967296,0]", "[0,0]", 0),
                "more elements"),
        taken("none, then elements beyond 64 bits", with(f32, "[0,4294967296,4294967296]", "[0,0]", 0)),
        refused("bits beyond 64 bits", with(f32, "[1152921504606846976]", "[0,4]", 4), "more bits"),
        refused("the largest offsets",
                with(R"("U8")", "[18446744073709551615]", "[0,18446744073709551615]", 4), "more bits"),
        refused("half a byte", with(R"("F4")", "[1]", "[0,1]", 1), "ends within a byte"),
        refused("6 bits", with(R"("F6_E2M3")", "[1]", "[0,1]", 1), "ends within a byte"),
        refused("12 bits", with(R"("F6_E3M2")", "[2]", "[0,2]", 2), "ends within a byte"),
        taken("two of 4 bits", with(R"("F4")", "[2]", "[0,1]", 1)),
        taken("four of 6 bits", with(R"("F6_E2M3")", "[2,2]", "[0,3]", 3)),
        refused("a byte too many in the file", one() + "x", "1 bytes more"),
        refused("a file that is cut off", with(f32, "[2]", "[0,8]", 7), "cut off in tensor \"a\""),
        refused("no data at all", with(f32, "[2]", "[0,8]", 0), "8 bytes are missing"),
        refused("offsets far beyond the file", with(R"("U8")", "[1099511627776]", "[0,1099511627776]", 0),
                "are missing"),
    };
}

std::vector<HeaderRule> stricter_rules() {
    // Duplicates: the reference keeps one of them, and which tensor was meant nobody knows. An entry as a
    // list, and a dtype as an object, are ways in which its JSON library reads any structure, and which no
    // writer uses.
    std::vector<HeaderRule> rules = {
        refused("a name twice", text(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)" + a + "}"),
                "names tensor \"a\" twice"),
        refused("a name twice, all the same", text("{" + a + "," + a + "}"), "names tensor \"a\" twice"),
        refused("a name twice in other letters",
                text(R"({"\u0061":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)" + a + "}"),
                "names tensor \"a\" twice"),
        refused("an entry that is a list", text(R"({"a":["F32",[1],[0,4]]})"),
                "tensor \"a\" is not an object"),
        refused("a dtype that is an object", with(R"({"F32":null})", "[1]", "[0,4]", 4),
                "dtype of tensor \"a\" is an object"),
    };
    for (HeaderRule& rule : rules) rule.reference = true;
    return rules;
}

}  // namespace sidestep
