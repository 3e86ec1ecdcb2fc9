# Completion of the command `sidestep` for fish; the command itself says what may follow.
# To use it: sidestep completion fish | source

function __sidestep_words
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion words -- $words[2..-1] 2>/dev/null)
    if string match -q ':program *' -- "$found[1]"
        set -l first (math (string replace ':program ' '' -- $found[1]) + 2)
        complete -C (string join ' ' -- (string escape -- $words[$first..-2]) $words[-1])
    else
        printf '%s\n' $found
    end
end

complete -c sidestep -f -a '(__sidestep_words)'
