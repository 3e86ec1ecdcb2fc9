// Who asks an S3 store, and where it is: the environment and files that Amazon's own tools read.
#pragma once

#include <string>

#include <sidestep/result.hpp>

namespace sidestep::backends::s3 {

struct Settings {
    std::string key;  // AWS_ACCESS_KEY_ID
    std::string secret;
    std::string token;  // empty: the credentials last
    std::string region;
    std::string endpoint;  // without a slash at its end; empty: Amazon's, by region
};

// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, else the profile AWS_PROFILE, or `default`, of
// AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials. AWS_REGION, AWS_DEFAULT_REGION, else the profile's in AWS_CONFIG_FILE,
// or ~/.aws/config, else us-east-1. AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else the profile's endpoint_url. permission_denied
// where there are no credentials: it names where they were looked for. Reads files; any thread.
Result<Settings> read_settings();

}  // namespace sidestep::backends::s3
