# Read by the walk-throughs: where they write to, and how they show a command before they run it.
set -euo pipefail
samples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-build/samples}

show() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}
