#!/bin/sh
# Runs a command with the agents' token from its file in the environment, so that no command line shows it.
set -eu
GRAVAC_TOKEN="$(cat "${GRAVAC_TOKEN_FILE:-/run/gravac/token}")"
unset GRAVAC_TOKEN_FILE
export GRAVAC_TOKEN
exec "$@"
