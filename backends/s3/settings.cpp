#include "backends/s3/settings.hpp"

#include <cstdlib>
#include <fstream>
#include <map>

#include <fmt/format.h>

namespace sidestep::backends::s3 {
namespace {

using Section = std::map<std::string, std::string>;

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
}

std::string first_of(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (std::string value = variable(name); !value.empty()) return value;
    return {};
}

std::string trimmed(const std::string& text) {
    const std::size_t first = text.find_first_not_of(" \t\r");
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// The lines "name = value" below "[section]"; empty where there is no such file or section.
Section section_of(const std::string& path, const std::string& section) {
    Section found;
    std::ifstream file(path);
    bool inside = false;
    for (std::string line; std::getline(file, line);) {
        const bool nested =
            !line.empty() && (line[0] == ' ' || line[0] == '\t');  // belongs to the line before
        line = trimmed(line);
        if (line.empty() || line[0] == '#' || line[0] == ';') continue;
        if (line[0] == '[') {
            inside = trimmed(line.substr(1, line.find(']') - 1)) == section;
            continue;
        }
        const std::size_t equals = line.find('=');
        if (inside && !nested && equals != std::string::npos)
            found.try_emplace(trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1)));
    }
    return found;
}

std::string path_of(const char* name, const char* below_home) {
    std::string path = variable(name);
    return path.empty() ? fmt::format("{}/{}", variable("HOME"), below_home) : path;
}

}  // namespace

Result<Settings> read_settings() {
    const std::string named = variable("AWS_PROFILE");
    const std::string profile = named.empty() ? "default" : named;
    const std::string credentials_file = path_of("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
    Section config = section_of(path_of("AWS_CONFIG_FILE", ".aws/config"),
                                profile == "default" ? profile : "profile " + profile);
    Settings settings;
    settings.region = first_of({"AWS_REGION", "AWS_DEFAULT_REGION"});
    if (settings.region.empty()) settings.region = config["region"];
    if (settings.region.empty()) settings.region = "us-east-1";
    settings.endpoint = first_of({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
    if (settings.endpoint.empty()) settings.endpoint = config["endpoint_url"];
    while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
    // A profile that was named counts before the keys of the environment's default.
    if (named.empty()) {
        settings.key = variable("AWS_ACCESS_KEY_ID");
        settings.secret = variable("AWS_SECRET_ACCESS_KEY");
        settings.token = variable("AWS_SESSION_TOKEN");
    }
    if (settings.key.empty() || settings.secret.empty()) {
        Section credentials = section_of(credentials_file, profile);
        Section& section = credentials.contains("aws_access_key_id") ? credentials : config;
        settings.key = section["aws_access_key_id"];
        settings.secret = section["aws_secret_access_key"];
        settings.token = section["aws_session_token"];
    }
    if (settings.key.empty() || settings.secret.empty())
        return Error{ErrorCode::permission_denied,
                     fmt::format("there are no credentials for S3: neither in AWS_ACCESS_KEY_ID and "
                                 "AWS_SECRET_ACCESS_KEY nor as the profile {} in {}",
                                 profile, credentials_file),
                     "s3", "set both variables, or AWS_PROFILE to a profile that has them"};
    return settings;
}

}  // namespace sidestep::backends::s3
