# Completion of the command `sidestep` for bash: verbs, options, machines and places.
# To use it: source <(sidestep completion bash)

# The words of the command line up to the cursor. Bash itself would split gpu:0 at the colon.
_sidestep_words() {
    local line=${COMP_LINE:0:COMP_POINT}
    read -ra _sidestep_line <<<"$line"
    [[ $line == *' ' ]] && _sidestep_line+=("")
}

# Offers the words of $1 (one a line) that begin with $2, less the part that bash put into a word of
# its own.
_sidestep_offer() {
    local word typed=$2 cut=""
    case $typed in *[:=]*) cut=${typed%"${typed##*[:=]}"} ;; esac
    while IFS= read -r word; do
        [[ -n $word && $word == "$typed"* ]] && COMPREPLY+=("${word#"$cut"}")
    done <<<"$1"
}

_sidestep_files() {
    local path
    while IFS= read -r path; do
        if [[ -d $path ]]; then path+=/; fi
        printf 'file:%s\n' "$path"
    done < <(compgen -f -- "${1#file:}")
}

_sidestep() {
    local _sidestep_line word current previous verb="" machine="" i
    COMPREPLY=()
    _sidestep_words
    current=${_sidestep_line[-1]}
    previous=${_sidestep_line[-2]}
    for ((i = 1; i < ${#_sidestep_line[@]} - 1; ++i)); do
        word=${_sidestep_line[i]}
        case $word in
            --machine) machine=${_sidestep_line[++i]} ;;
            --machine=*) machine=${word#*=} ;;
            --require | --prefer | --size | --chunk | --max-staging | --deadline | --repeat | --format | --output | \
                --as | --record | --theme | --node | --save | --pages | --case | --samples | --gpu | --from | --to | --folder | \
                --thresholds | --html | --only | --manifest | --verify-manifest | --layout | --shard | \
                --nccl-library | --timeout | -n | --ranks | --nccl | --mode | --type | --op | --root | --iterations | --warmup | --begin | --end | \
                --factor | -b | -e | -f | -d | -o | -r | -w) ((++i)) ;;
            -*) ;;
            *) [[ -z $verb ]] && verb=$word ;;
        esac
    done
    local command=${_sidestep_line[0]}
    if [[ $current == --*=* ]]; then
        previous=${current%%=*}
        current=${current#*=}
    fi
    case $previous in
        --machine)
            _sidestep_offer "$("$command" completion machines 2>/dev/null)" "$current"
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
                compgen -f -X '!*.json' -- "$current"
                compgen -f -X '!*.xml' -- "$current"
            )
            return ;;
        --as) _sidestep_offer "$("$command" completion machines 2>/dev/null)" "$current"; return ;;
        --require) _sidestep_offer $'any\ndirect\nhost' "$current"; return ;;
        --format) _sidestep_offer $'text\ntree\npairs\njson\nxml\ndot\nsvg' "$current"; return ;;
        --theme) _sidestep_offer $'light\ndark' "$current"; return ;;
        --case) _sidestep_offer "$("$command" completion cases 2>/dev/null)" "$current"; return ;;
        --from | --to)
            if [[ $verb == tune ]]; then
                while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current")
                return
            fi
            _sidestep_offer "$("$command" completion places ${machine:+--machine "$machine"} 2>/dev/null)" "$current"
            return ;;
        --layout) _sidestep_offer $'replicate\ntensor\naxis' "$current"; return ;;
        --mode) _sidestep_offer $'stream\ngraph\nboth' "$current"; return ;;
        --output | --nccl-library | --nccl | --record | --save | --pages | --html | --thresholds | --folder | --shard | --manifest | --verify-manifest)
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current")
            return ;;
        --prefer) _sidestep_offer $'copy-engine\nkernel' "$current"; return ;;
        --size | --chunk | --max-staging | --deadline | --repeat | --node | --samples | --gpu | --only | --timeout | --ranks | --root | --iterations | --warmup | --begin | --end | --factor | \
            --type | --op) return ;;
    esac
    if [[ $current == -* ]]; then
        _sidestep_offer "$("$command" completion options $verb 2>/dev/null)" "$current"
        return
    fi
    case $verb in
        "") _sidestep_offer "$("$command" completion verbs 2>/dev/null)" "$current" ;;
        help) _sidestep_offer "$("$command" completion verbs 2>/dev/null)" "$current" ;;
        topo) _sidestep_offer diff "$current" ;;
        run)
            # A program behind --: its own words are files as likely as anything.
            compopt -o filenames 2>/dev/null
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -c -- "$current") ;;
        inspect | load)
            compopt -o filenames 2>/dev/null
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current") ;;
        bench)
            _sidestep_offer $'collective\ncompare\nnet\npage' "$current"
            # The reports that compare takes.
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -X '!*.json' -- "$current") ;;
        completion) _sidestep_offer $'bash\nverbs\noptions\nmachines\nplaces\ncases' "$current" ;;
        copy | route)
            if [[ $current == file:* ]]; then
                _sidestep_offer "$(_sidestep_files "$current")" "$current"
                compopt -o nospace -o filenames 2>/dev/null
            else
                _sidestep_offer "$("$command" completion places ${machine:+--machine "$machine"} 2>/dev/null)
file:" "$current"
                [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == file: ]] && compopt -o nospace 2>/dev/null
            fi ;;
    esac
}

complete -F _sidestep sidestep
