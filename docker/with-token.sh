#!/bin/sh
# Runs a command with the agents' token, read from a file, in its environment: no command line shows it.
set -eu
GRAVAC_TOKEN="$(cat "${GRAVAC_TOKEN_FILE:-/run/gravac/token}")"
unset GRAVAC_TOKEN_FILE
export GRAVAC_TOKEN
exec "$@"
