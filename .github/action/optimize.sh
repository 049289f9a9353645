#!/usr/bin/env bash
# Optimize all models that match, each verified against its original, and summarize.
# Environment: MODELS, patterns, one a line; OPTIONS of `graphopt optimize`; OUTPUT, a folder.
set -uo pipefail
shopt -s globstar nullglob
read -r -a options <<<"$OPTIONS"

summary=${GITHUB_STEP_SUMMARY:-/dev/stdout}
IFS=$'\n'
models=()
for model in $MODELS; do # unquoted: patterns become paths
  case $model in *.opt.onnx | "$OUTPUT"/*) ;; *) models+=("$model") ;; esac
done
if [ ${#models[@]} = 0 ]; then
  echo "::error::no model matches: $MODELS"
  exit 2
fi

failed=0
for model in "${models[@]}"; do
  mkdir -p "$OUTPUT/$(dirname "$model")"
  echo "::group::$model"
  if report=$(graphopt optimize "$model" -o "$OUTPUT/$model" ${options[@]+"${options[@]}"} 2>&1); then
    state=ok
  else
    state=failed failed=$((failed + 1))
    echo "::error file=$model::$(grep -m 1 '^graphopt: ' <<<"$report")"
  fi
  echo "$report"
  echo "::endgroup::"
  printf '### %s: %s\n\n```\n%s\n```\n\n' "$model" "$state" "$report" >>"$summary"
done
echo "${#models[@]} models, $failed failed"
[ "$failed" = 0 ]
