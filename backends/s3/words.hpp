// What an S3 store is asked and answers, as text: addresses, names and errors. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sidestep::backends::s3 {

// BUCKET/KEY of a place.
struct Name {
    std::string bucket;
    std::string key;  // empty: the bucket itself

    static Name of(std::string_view path);
    std::string to_string() const;  // s3://BUCKET/KEY
};

// All but letters, digits and "-_.~", and where told to "/", as %XX: the rule of Amazon's signatures.
std::string escaped(std::string_view text, bool keep_slashes);
// The other way; '+' is a space too, as in lists that were asked for in this form.
std::string unescaped(std::string_view text);

// The text between <NAME> and </NAME>, the first; nothing where there is none.
std::optional<std::string> element(std::string_view xml, std::string_view name);
// All of them.
std::vector<std::string> elements(std::string_view xml, std::string_view name);

}  // namespace sidestep::backends::s3
