# Read by the walk-throughs: where they write to, and how they show a command before they run it.
set -euo pipefail
samples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-build/samples}

show() {
  local word
  printf '\n$'
  for word in "$@"; do
    case $word in
      *[!a-zA-Z0-9_./:,=-]*) printf " '%s'" "$word" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  printf '\n'
  "$@"
}
