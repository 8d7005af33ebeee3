# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_fullbore_global_optspecs
    string join \n h/help V/version
end

function __fish_fullbore_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_fullbore_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_fullbore_using_subcommand
    set -l cmd (__fish_fullbore_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c fullbore -n "__fish_fullbore_needs_command" -s h -l help -d 'Print help'
complete -c fullbore -n "__fish_fullbore_needs_command" -s V -l version -d 'Print version'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "mirror" -d 'Clone or update a Debian archive from one or many mirrors'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "update" -d 'Refresh APT\'s indexes as `apt-get update` does'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "check" -d 'Re-read an archive against its signed indexes, and repair it'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "pdiff" -d 'Apply, join, make and publish patches of APT\'s indexes'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "convert" -d 'Convert settings of apt-mirror, debmirror or ftpsync to fullbore\'s'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "apt" -d 'Make the system\'s own apt use fullbore\'s methods, or undo it'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "copy" -d 'Copy files and trees'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "probe" -d 'Say what a copy will be limited by, and how long it will take'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "bootstrap" -d 'Make a Debian root, as mmdebstrap is called'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "install" -d 'Install packages as apt-get does, unpacked in parallel and without needless syncs'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "nosync" -d 'Run a command with its sync calls answered at once, and sync once when it has ended'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "divert" -d 'Make dpkg and apt-get of another root run without syncs, or undo it'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "put" -d 'Put files into a Tahoe-LAFS grid or an S3 store'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "get" -d 'Get files out of a Tahoe-LAFS grid or an S3 store'
complete -c fullbore -n "__fish_fullbore_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l from -d 'Fetch from this archive; repeat for more mirrors of it. The first is the origin' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l suite -d 'Mirror this suite or codename; repeat or separate with commas' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l component -d 'Mirror this component; repeat or separate with commas (default: all in the Release)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l arch -d 'Mirror this architecture, `source` or `all`; repeat or separate with commas (default: all)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l sources -d 'Mirror what this file or directory of apt sources names (deb822 .sources or one-line .list)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l config -d 'Read settings from this file (default: /etc/fullbore/mirror.toml)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l to -d 'Write the mirror into this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l snapshot -d 'Keep this run also as a snapshot of this name, made of hard links' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l include -d 'Mirror only files whose path matches; with --exclude: bring such files back' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l exclude -d 'Leave out files whose path matches this regular expression; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l section -d 'Mirror only packages of this section: `devel`, or `contrib/devel`; comma-separated' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l priority -d 'Mirror only packages of this priority, such as `required`; comma-separated' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l source-package -d 'Mirror only packages built from this source package; comma-separated' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l newest -d 'Mirror only the newest N versions of each package' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l index-formats -d 'Fetch only these forms of each index; comma-separated (default: every compressed form that exists)' -r -f -a "plain\t'Not compressed'
xz\t'xz, Debian\'s usual form'
gz\t'gzip'
zst\t'Zstandard'
bz2\t'bzip2'"
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l without -d 'Leave out these kinds of files; comma-separated' -r -f -a "contents\t'Contents indexes: which package has which file'
translations\t'Translated descriptions'
dep11\t'AppStream metadata and icons'
cnf\t'Indexes for command-not-found'
udeb\t'Packages of the installer (udeb)'
installer\t'Installer images'
pdiff\t'Index differences (*.diff/Index and the patches it names)'"
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l languages -d 'Fetch translated descriptions only in these languages, such as en,de (default: all)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l keyring -d 'Verify signatures with this keyring; repeat for more (default: Signed-By, or Debian\'s keyring)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l cacert -d 'Verify TLS with these certificates in addition to the system\'s' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l max-delete -d 'Stop when more than this share of the mirrored files would be deleted [default: 40%]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l keep-generations -d 'Keep the files and by-hash indexes of this many earlier states [default: 3]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l keep-hours -d 'Keep them at least this many hours [default: 24]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l durability -d 'When to wait for the disk: never, once before publishing, or for each file [default: at-end]' -r -f -a "none\t'Never: a power cut may lose files that the state names'
at-end\t'Once before the indexes are published'
each\t'For each file before it gets its name'"
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l trace-host -d 'Call this mirror so in its trace files: its public host name (default: this machine\'s name)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l trace-info -d 'Write this line into the trace file, such as "Maintainer: NAME <ADDRESS>"; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l limit-rate -d 'Receive at most this many bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l connections -d 'Open at most this many connections to one host, up to 16 [default: 4]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l auth -d 'Read credentials from this file in apt\'s auth.conf format (default: apt\'s own files)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l origin -d 'Name the origin: it decides the state to mirror (default: the first --from)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l ignore-valid-until -d 'Accept a Release whose Valid-Until has passed; logged at every run'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l force-delete -d 'Delete even when --max-delete is exceeded'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l clean-foreign -d 'Delete also files that fullbore did not put there'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l no-clean -d 'Delete nothing'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l http1 -d 'Speak only HTTP/1.1, never HTTP/2'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l no-hedge -d 'Never ask a second host for what a slow one is sending'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l origin-only -d 'Fetch everything from the origin alone'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -s n -l dry-run -d 'Show what would be fetched, in files and bytes; no file of the mirror changes'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -l changed-exit -d 'Exit with 10 when nothing had changed, so that scripts can tell'
complete -c fullbore -n "__fish_fullbore_using_subcommand mirror" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l sources -d 'Take the sources from this file or directory (deb822 .sources or one-line .list; default: apt\'s)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l lists -d 'Keep the indexes in this directory (default: apt\'s, /var/lib/apt/lists)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l level -d 'Compress what stays compressed for speed (`own`) or as hard as apt does (`apt`)' -r -f -a "own\t'zstd 3, xz 0, gz 6, lz4 1'
apt\t'zstd 19, xz 6, gz 6, lz4 1'"
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l keyring -d 'Verify signatures with this keyring; repeat for more (default: Signed-By, or Debian\'s keyring)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l cacert -d 'Verify TLS with these certificates in addition to the system\'s' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l durability -d 'Wait for the disk never, once at the end, or for each file [default: at-end]' -r -f -a "none\t'Never: a power cut may lose files that the state names'
at-end\t'Once before the indexes are published'
each\t'For each file before it gets its name'"
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l limit-rate -d 'Receive at most this many bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l connections -d 'Open at most this many connections to one host, up to 16 [default: 4]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l auth -d 'Read credentials from this file in apt\'s auth.conf format (default: apt\'s own files)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l no-pdiffs -d 'Fetch indexes whole, never by patches'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l ignore-valid-until -d 'Accept a Release whose Valid-Until has passed; logged at every run'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l no-clean -d 'Leave files of sources that are gone'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l no-hooks -d 'Do not run the commands that apt\'s configuration has for before and after an update'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l http1 -d 'Speak only HTTP/1.1, never HTTP/2'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l no-hedge -d 'Never ask a second host for what a slow one is sending'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -l changed-exit -d 'Exit with code 10 instead of 0 when nothing had changed'
complete -c fullbore -n "__fish_fullbore_using_subcommand update" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l read-data-subset -d 'Read the content of only this random share of the files; sizes are checked for all' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l from -d 'Repair from this archive; repeat for more (default: where the mirror came from)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l keyring -d 'Verify signatures with this keyring; repeat for more (default: Signed-By, or Debian\'s keyring)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l cacert -d 'Verify TLS with these certificates in addition to the system\'s' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l limit-rate -d 'Receive at most this many bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l connections -d 'Open at most this many connections to one host, up to 16 [default: 4]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l auth -d 'Read credentials from this file in apt\'s auth.conf format (default: apt\'s own files)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l repair -d 'Fetch what is missing or wrong'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l http1 -d 'Speak only HTTP/1.1, never HTTP/2'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l no-hedge -d 'Never ask a second host for what a slow one is sending'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and not __fish_seen_subcommand_from apply merge generate publish help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and not __fish_seen_subcommand_from apply merge generate publish help" -f -a "apply" -d 'Apply patches to an index, oldest first, in one pass'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and not __fish_seen_subcommand_from apply merge generate publish help" -f -a "merge" -d 'Join patches, oldest first, to one that does what they do'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and not __fish_seen_subcommand_from apply merge generate publish help" -f -a "generate" -d 'Make the patch that leads from one state of an index to another'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and not __fish_seen_subcommand_from apply merge generate publish help" -f -a "publish" -d 'Publish patches beside an archive\'s indexes, for those who run one'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and not __fish_seen_subcommand_from apply merge generate publish help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from apply" -s o -l output -d 'Write the patched index to this file: plain, .gz, .xz, .zst or .lz4' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from apply" -l sha256 -d 'Give the result its name only if its content, uncompressed, has this SHA-256' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from apply" -l level -d 'Compress for speed (`own`) or as hard as apt does (`apt`)' -r -f -a "own\t'zstd 3, xz 0, gz 6, lz4 1'
apt\t'zstd 19, xz 6, gz 6, lz4 1'"
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from apply" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from merge" -s o -l output -d 'Write the patch to this file, plain or .gz (default: to stdout)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from merge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from generate" -s o -l output -d 'Write the patch to this file, plain or .gz (default: to stdout)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from generate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l old -d 'Take the states before from this copy of DIR, and keep none' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l state -d 'Keep the states of the indexes in this directory (default: DIR/.fullbore)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l max-patches -d 'Keep patches for at most so many states' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l keep-hours -d 'Keep files that are listed no more for so many hours, for clients that are just fetching them' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l exclude -d 'Leave out indexes whose path below DIR matches this regular expression; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l durability -d 'When to wait for the disk: never, once before publishing, or for each file [default: at-end]' -r -f -a "none\t'Never: a power cut may lose files that the state names'
at-end\t'Once before the indexes are published'
each\t'For each file before it gets its name'"
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l merged -d 'Publish also a patch from each state directly to the present one, and offer these first'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -l json -d 'Print a line of JSON for each index'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from publish" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from help" -f -a "apply" -d 'Apply patches to an index, oldest first, in one pass'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from help" -f -a "merge" -d 'Join patches, oldest first, to one that does what they do'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from help" -f -a "generate" -d 'Make the patch that leads from one state of an index to another'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from help" -f -a "publish" -d 'Publish patches beside an archive\'s indexes, for those who run one'
complete -c fullbore -n "__fish_fullbore_using_subcommand pdiff; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand convert" -s o -l output -d 'Write the result to this file instead of stdout; an existing file is not replaced' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand convert" -l format -d 'Take the file to be of this program (default: by name, then by content)' -r -f -a "apt-mirror\t'apt-mirror\'s mirror.list'
debmirror\t'debmirror.conf'
ftpsync\t'ftpsync.conf'"
complete -c fullbore -n "__fish_fullbore_using_subcommand convert" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and not __fish_seen_subcommand_from enable disable status help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and not __fish_seen_subcommand_from enable disable status help" -f -a "enable" -d 'Make apt use fullbore\'s methods'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and not __fish_seen_subcommand_from enable disable status help" -f -a "disable" -d 'Make apt use its own methods again'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and not __fish_seen_subcommand_from enable disable status help" -f -a "status" -d 'Show which methods apt uses'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and not __fish_seen_subcommand_from enable disable status help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from enable" -l root -d 'Change the system below this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from enable" -l program -d 'Have apt start this program (default: this one; in another root /usr/bin/fullbore)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from enable" -l mirrors -d 'Fetch from the mirrors listed in this file, too; repeat for more' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from enable" -l level -d 'How hard to compress indexes that apt keeps compressed' -r -f -a "own\t'Fast: zstd 3, xz 0, gz 6, lz4 1'
apt\t'As apt does it, for the smallest files'"
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from enable" -l force -d 'Replace a snippet that was changed by hand'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from enable" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from disable" -l root -d 'Change the system below this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from disable" -l force -d 'Remove a snippet that was changed by hand'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from disable" -s h -l help -d 'Print help'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from status" -l root -d 'Look at the system below this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from status" -l json -d 'Print it as a line of JSON'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from help" -f -a "enable" -d 'Make apt use fullbore\'s methods'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from help" -f -a "disable" -d 'Make apt use its own methods again'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show which methods apt uses'
complete -c fullbore -n "__fish_fullbore_using_subcommand apt; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l exclude -d 'Leave out what matches this pattern of rsync\'s; the first rule that matches decides' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l include -d 'Copy what matches this pattern although a later rule leaves it out' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l exclude-from -d 'Read patterns to leave out from this file, one a line' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l include-from -d 'Read patterns to copy from this file, one a line' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l files-from -d 'Copy only the paths in this file, one a line, relative to SRC (- for standard input)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s e -l rsh -d 'Reach the other machine by this command (default: ssh)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l remote-path -d 'Run this there instead of `fullbore`, for example `sudo fullbore`' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l streams -d 'Open so many connections for content (default: as many as the path needs)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l send-program -d 'Send this program (or FILE, a statically linked one) along, run it there from a temporary directory, and leave nothing of it' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l congestion -d 'Give connections this congestion control (default: the system\'s, and bbr where loss asks for it)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l bwlimit -d 'Take at most this rate, as rsync counts it: 1000 or 1000K is 1000 KiB/s, 1.5M, 20MB; 0 is no limit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l retry-for -d 'Dial again for so many seconds when the connection is lost' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l join -d 'Carry bytes between standard input and output and a server that runs already' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l group-time -d 'Give names and make checkpoints so often, in milliseconds; for tests' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l line-time -d 'Write lines of progress so often, in milliseconds; for tests' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l durability -d 'Sync `none` of it, all `at-end`' -r -f -a "none\t''
at-end\t''"
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l set -d 'Give your copies on this machine another limit: bwlimit=RATE, as --bwlimit takes it' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l pid -d 'With --status or --set: only the copy with this process number' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l log-file -d 'Write to this file how the copy begins and ends, and every 30 seconds what is done, rate, time left, limit' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l help -d 'Print help'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s n -l dry-run -d 'Compare and tell what would be done; write nothing'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s c -l checksum -d 'Compare files of the same length by their content instead of their time'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l remove-source-files -d 'Remove files at the source once they are on the destination\'s disk'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l verify -d 'Read back from the device, not from memory, what was written, and compare'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l delete -d 'Delete what the source does not have, if everything else went well'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s 0 -l from0 -d 'Paths and patterns in files end in NULs, as find -print0 writes them'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s x -l one-file-system -d 'Stay on the file system of each SRC; /proc and /sys are never entered'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s r -l recursive -d 'Descend into directories that --files-from names (without it: always)'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l numeric-ids -d 'Keep numbers of owners and groups; do not look for their names'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-owner -d 'Do not keep owners'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-group -d 'Do not keep groups'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-perms -d 'Do not keep permissions'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-acls -d 'Do not keep ACLs'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-xattrs -d 'Do not keep extended attributes'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-hard-links -d 'Copy each name of a file with hard links by itself'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-specials -d 'Leave out devices, named pipes and sockets'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s a -l archive -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s l -l links -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s p -l perms -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s t -l times -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s o -l owner -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s g -l group -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s D -d 'On by default: devices, named pipes and sockets'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s H -l hard-links -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s A -l acls -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s X -l xattrs -d 'On by default'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s S -l sparse -d 'On by default: holes of the source stay holes'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l partial -d 'On by default: unfinished files are always kept and gone on with'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l progress -d 'On by default, on a terminal: a bar for the whole copy'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s P -d '--partial and --progress'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s h -l human-readable -d 'On by default; alone, as with rsync: print help'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l quic -d 'Make connections by QUIC alone (default: only if no TCP connection gets through)'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l ssh-only -d 'Send everything by ssh; make no connections of its own'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s z -l compress -d 'Compress whatever gets smaller (default: where a trial shows that it makes the copy faster)'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l no-compress -d 'Compress nothing'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s W -l whole-file -d 'Send changed files whole, not only their changed blocks'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l server -d 'Serve the other end of a copy on standard input and output'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l remove-self -d 'Remove the program\'s own file, which was sent along for this run'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l status -d 'Tell where your copies on this machine stand'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand copy" -s v -l verbose -d 'Name each file that is copied, and log how the other machine is reached; repeat for more'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l time -d 'Take so many seconds' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -s e -l rsh -d 'Reach the other machine by this command (default: ssh)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l remote-path -d 'Run this there instead of `fullbore`, for example `sudo fullbore`' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l streams -d 'Open so many connections for content (default: as many as the path needs)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l send-program -d 'Send this program (or FILE, a statically linked one) along, run it there from a temporary directory, and leave nothing of it' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l congestion -d 'Give connections this congestion control (default: the system\'s, and bbr where loss asks for it)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -s x -l one-file-system -d 'Stay on the file system of SRC'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l quic -d 'Make connections by QUIC alone (default: only if no TCP connection gets through)'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l ssh-only -d 'Send everything by ssh; make no connections of its own'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -l json -d 'Print events as lines of JSON on stdout, the result last'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -s q -l quiet -d 'Do not say what is being tried'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -s v -l verbose -d 'Log how the other machine is reached; repeat for more'
complete -c fullbore -n "__fish_fullbore_using_subcommand probe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l variant -d 'Which packages are installed' -r -f -a "custom\t'None'
essential\t'Essential packages and what they need'
apt\t'That, and apt'
required\t'All packages of priority required; minbase is the same'
buildd\t'That, and build-essential'
important\t'All packages of priorities required and important'
standard\t'That, and those of priority standard'"
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l include -d 'Install these packages, too: names, patterns of apt, or names with a version; comma-separated' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l components -l component -d 'Take packages of these components; comma-separated [default: main]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l arch -l architectures -d 'The root\'s architecture, and foreign ones after it; comma-separated (default: this machine\'s)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l aptopt -d 'Option for apt in the root and while it is made: text as in apt.conf, or a file; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l dpkgopt -d 'Option for dpkg in the root and while it is made: text as in dpkg.cfg, or a file; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l mode -d 'How the root is made: with the rights of root, or in a user namespace [default: whichever is possible]' -r -f -a "auto\t'As root if it is root, else in a user namespace'
root\t'As root'
unshare\t'In a user namespace, with the numbers of /etc/subuid and /etc/subgid'"
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l format -d 'What is made (default: by the ending of TARGET)' -r -f -a "auto\t'By the ending of the target\'s name: .tar and its compressed forms, .squashfs, .sqfs, else a directory'
dir\t'A directory'
tar\t'An archive for tar, compressed as the ending says'
squashfs\t'A file system for squashfs'"
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l setup-hook -d 'Run this before any package: a program, or a snippet for sh with the root as $1; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l extract-hook -d 'Run this when Essential packages are unpacked' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l essential-hook -d 'Run this when Essential packages are configured' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l customize-hook -d 'Run this when all packages are configured' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l hook-directory -l hook-dir -d 'Run the programs of this directory whose names begin with setup, extract, essential or customize' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l keyring -d 'Verify signatures with this keyring; repeat for more (default: Signed-By, or Debian\'s keyring)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l cacert -d 'Verify TLS with these certificates in addition to the system\'s' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l limit-rate -d 'Receive at most this many bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l connections -d 'Open at most this many connections to one host, up to 16 [default: 4]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l auth -d 'Read credentials from this file in apt\'s auth.conf format (default: apt\'s own files)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l http1 -d 'Speak only HTTP/1.1, never HTTP/2'
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l no-hedge -d 'Never ask a second host for what a slow one is sending'
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand bootstrap" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l root -d 'Install into this root, with its own apt and dpkg' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l aptopt -d 'Option for apt: NAME=VALUE, as for apt-get --option; repeat for more' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l cacert -d 'Verify TLS with these certificates in addition to the system\'s' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l limit-rate -d 'Receive at most this many bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l connections -d 'Open at most this many connections to one host, up to 16 [default: 4]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l auth -d 'Read credentials from this file in apt\'s auth.conf format (default: apt\'s own files)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -s y -l yes -d 'Do not ask before more is done than to install what is named'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l force -d 'Install even where services could be started, which would then run without syncs'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l http1 -d 'Speak only HTTP/1.1, never HTTP/2'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l no-hedge -d 'Never ask a second host for what a slow one is sending'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand nosync" -l report -d 'Count the sync calls and say about how much time they would have taken'
complete -c fullbore -n "__fish_fullbore_using_subcommand nosync" -l force -d 'Run even where a service manager could start services that would keep the filter'
complete -c fullbore -n "__fish_fullbore_using_subcommand nosync" -l no-final-sync -d 'Leave the final sync to somebody else'
complete -c fullbore -n "__fish_fullbore_using_subcommand nosync" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and not __fish_seen_subcommand_from on off status help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and not __fish_seen_subcommand_from on off status help" -f -a "on" -d 'Have programs run without syncs'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and not __fish_seen_subcommand_from on off status help" -f -a "off" -d 'Bring programs back, and sync'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and not __fish_seen_subcommand_from on off status help" -f -a "status" -d 'Show what is diverted'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and not __fish_seen_subcommand_from on off status help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from on" -l root -d 'Change the system below this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from on" -l via -d 'How programs are made to run without syncs' -r -f -a "diversions\t'By dpkg\'s diversions: whoever starts the program'
apt-conf\t'By APT\'s configuration: dpkg, when APT starts it; nothing of dpkg\'s is changed'"
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from on" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from off" -l root -d 'Change the system below this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from off" -s h -l help -d 'Print help'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from status" -l root -d 'Look at the system below this directory' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from help" -f -a "on" -d 'Have programs run without syncs'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from help" -f -a "off" -d 'Bring programs back, and sync'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show what is diverted'
complete -c fullbore -n "__fish_fullbore_using_subcommand divert; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l node -d 'Take servers, secrets and encoding from this directory of a Tahoe-LAFS node, e.g. ~/.tahoe' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l servers -d 'Take the servers from this file, in the form of a node\'s private/servers.yaml' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l timeout -d 'Give a server up after so many seconds in which nothing moves' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l encoding -d 'Shares needed, servers that must hold one, shares made (default: the node\'s, or 3,7,10)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l segment-size -d 'Bytes of a segment at most; another value than the stock client\'s gives other caps [default: 1048576]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l convergence -d 'Convergence secret in base32, for --dry-run only: everybody on the machine can see it' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l convergence-file -d 'Read the convergence secret from this file instead of the node\'s private/convergence' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l size -d 'Stdin has exactly so many bytes and is sent as it comes; needs --random-key' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l caps -d 'Write a list of all files and their caps, as lines of JSON, readable by you only' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l limit-rate -d 'Send at most so many bytes per second: 20M, 512KiB, 100Mbit' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l journals -d 'Keep journals of uploads here, mode 0600 (default: fullbore/put in the directory for state)' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l endpoint -d 'Use the S3-compatible store at this URL instead of Amazon\'s' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l region -d 'Region of the bucket (default: AWS_REGION, the profile\'s, or us-east-1)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l profile -d 'Take credentials and settings from this profile of ~/.aws/config and ~/.aws/credentials' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l addressing -d 'Where the bucket stands in addresses' -r -f -a "auto\t'In the path for an --endpoint, in the host name otherwise'
path\t'<https://host/bucket/key>'
virtual\t'<https://bucket.host/key>'"
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l cacert -d 'Trust the authorities in this PEM file as well' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l connections -d 'Connections to the store at most [default: 64]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l content-type -d 'Content-Type of all objects (default: by the name of each file)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l cache-control -d 'Cache-Control of all objects, such as max-age=300' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l metadata -d 'Metadata of all objects; may be repeated' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l storage-class -d 'Storage class, such as STANDARD_IA' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l acl -d 'Canned access control list, such as public-read' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l sse -d 'Encryption by the store: AES256, aws:kms or aws:kms:KEY-ID' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l last -d 'Send files that match after all others; repeated: those that match a later one after those before' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l max-delete -d 'Delete nothing when more than this share of the objects would be deleted [default: 40%]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l copy-links -d 'Follow symbolic links that end within the directory that is put'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l with-snapshots -d 'Put also the snapshots of a mirror'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l dry-run -d 'Print the caps that the files would have; speaks to no server'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l random-key -d 'Give each file a key of its own: equal files are not recognised, by nobody'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l no-sign-request -d 'Do not sign requests: for buckets that are open to everybody'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l resend -d 'Send also what is there already with the same content'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l delete -d 'When all is there, delete objects beneath the prefix that are not among the files'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -l force-delete -d 'Delete even when --max-delete is exceeded'
complete -c fullbore -n "__fish_fullbore_using_subcommand put" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l node -d 'Take servers, secrets and encoding from this directory of a Tahoe-LAFS node, e.g. ~/.tahoe' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l servers -d 'Take the servers from this file, in the form of a node\'s private/servers.yaml' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l timeout -d 'Give a server up after so many seconds in which nothing moves' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -s o -l output -d 'Write to this file instead of to stdout; it appears when it is complete' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l report -d 'Write a report of the run: one HTML page, or all its data if the name ends in .json' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l metrics -d 'Write metrics for Prometheus\' textfile collector' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l trace -d 'Write a trace of the run\'s phases and stages, to be opened in Perfetto' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l endpoint -d 'Use the S3-compatible store at this URL instead of Amazon\'s' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l region -d 'Region of the bucket (default: AWS_REGION, the profile\'s, or us-east-1)' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l profile -d 'Take credentials and settings from this profile of ~/.aws/config and ~/.aws/credentials' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l addressing -d 'Where the bucket stands in addresses' -r -f -a "auto\t'In the path for an --endpoint, in the host name otherwise'
path\t'<https://host/bucket/key>'
virtual\t'<https://bucket.host/key>'"
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l cacert -d 'Trust the authorities in this PEM file as well' -r -F
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l connections -d 'Connections to the store at most [default: 64]' -r
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l json -d 'Print events as lines of JSON on stdout, the totals last'
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -s q -l quiet -d 'Print only errors'
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -s v -l verbose -d 'Log more; repeat for still more'
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l no-sign-request -d 'Do not sign requests: for buckets that are open to everybody'
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -l require-checksum -d 'Write no object that a checksum of the store does not verify (exit code 4)'
complete -c fullbore -n "__fish_fullbore_using_subcommand get" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "mirror" -d 'Clone or update a Debian archive from one or many mirrors'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "update" -d 'Refresh APT\'s indexes as `apt-get update` does'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "check" -d 'Re-read an archive against its signed indexes, and repair it'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "pdiff" -d 'Apply, join, make and publish patches of APT\'s indexes'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "convert" -d 'Convert settings of apt-mirror, debmirror or ftpsync to fullbore\'s'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "apt" -d 'Make the system\'s own apt use fullbore\'s methods, or undo it'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "copy" -d 'Copy files and trees'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "probe" -d 'Say what a copy will be limited by, and how long it will take'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "bootstrap" -d 'Make a Debian root, as mmdebstrap is called'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "install" -d 'Install packages as apt-get does, unpacked in parallel and without needless syncs'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "nosync" -d 'Run a command with its sync calls answered at once, and sync once when it has ended'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "divert" -d 'Make dpkg and apt-get of another root run without syncs, or undo it'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "put" -d 'Put files into a Tahoe-LAFS grid or an S3 store'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "get" -d 'Get files out of a Tahoe-LAFS grid or an S3 store'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and not __fish_seen_subcommand_from mirror update check pdiff convert apt copy probe bootstrap install nosync divert put get help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from pdiff" -f -a "apply" -d 'Apply patches to an index, oldest first, in one pass'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from pdiff" -f -a "merge" -d 'Join patches, oldest first, to one that does what they do'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from pdiff" -f -a "generate" -d 'Make the patch that leads from one state of an index to another'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from pdiff" -f -a "publish" -d 'Publish patches beside an archive\'s indexes, for those who run one'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from apt" -f -a "enable" -d 'Make apt use fullbore\'s methods'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from apt" -f -a "disable" -d 'Make apt use its own methods again'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from apt" -f -a "status" -d 'Show which methods apt uses'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from divert" -f -a "on" -d 'Have programs run without syncs'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from divert" -f -a "off" -d 'Bring programs back, and sync'
complete -c fullbore -n "__fish_fullbore_using_subcommand help; and __fish_seen_subcommand_from divert" -f -a "status" -d 'Show what is diverted'
