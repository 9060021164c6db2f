// Loaded by the coding agent. When it reads a file, OpenCode appends the AGENTS.md, CLAUDE.md or CONTEXT.md of the
// file's folder as instructions, even where project configuration is off. A repository gives no instructions here:
// such files are text that the agent may read like any other.
// Lines of the file itself are numbered, so the first unnumbered closing tag is the reader's own.
const END = "\n</content>"

export const IgnoreRepositoryInstructions = async () => ({
  "tool.execute.after": async (input, output) => {
    if (input.tool !== "read" || typeof output.output !== "string") return
    const end = output.output.indexOf(END + "\n\n<system-reminder>")
    if (end >= 0) output.output = output.output.slice(0, end + END.length)
    if (output.metadata?.loaded) output.metadata.loaded = []
  },
})
