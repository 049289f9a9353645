/* Opens bundles with samples/host/host.c as a part of another program, and runs each without inputs. Prints a line for
   each: "opened" and the error of the run, or the error of opening it. */
#define GOPT_NO_MAIN
#include "host.c"

int main(int count, char **words) {
  for (int index = 1; index < count; index++) {
    gopt_bundle *bundle = NULL;
    gopt_error error = {""};
    if (gopt_open(words[index], NULL, &bundle, &error) != 0) {
      printf("error: %s\n", error.text);
      continue;
    }
    const OrtValue **inputs = calloc(gopt_input_count(bundle) + 1, sizeof *inputs);
    OrtValue **outputs = calloc(gopt_output_count(bundle) + 1, sizeof *outputs);
    if (inputs == NULL || outputs == NULL) return 2;
    const int variant = gopt_choose(bundle, inputs, &error);
    const int status = variant < 0 ? variant : gopt_run(bundle, variant, inputs, outputs, &error);
    printf("opened: %s\n", status == 0 ? gopt_variant_name(bundle, variant) : error.text);
    for (size_t output = 0; output < gopt_output_count(bundle); output++)
      if (outputs[output] != NULL) bundle->api->ReleaseValue(outputs[output]);
    free(inputs);
    free(outputs);
    gopt_close(bundle);
  }
  return 0;
}
