// The steps of the GitHub action: runs apt-setup.sh to enable, and after the job's last step to disable. It is a node
// action because composite actions have no step after the job (actions/runner issue 1478). It uses nothing but node.
//
//   node action.js                 as the runner calls it, at the beginning and at the end
//   node action.js fetch URL FILE  for apt-setup.sh, in containers without curl and wget
'use strict'
const fs = require('node:fs')
const path = require('node:path')
const { spawnSync } = require('node:child_process')

// Of the whole script, in ms: two downloads at their limits, and some more. A hung script must not hang the job.
const LIMIT_MS = 300_000

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] || '').trim()

// The release that belongs to this checkout of the action, so that `uses: …@COMMIT` pins the program's version as well.
function version() {
  const manifest = fs.readFileSync(path.join(__dirname, '../../Cargo.toml'), 'utf8')
  return /^version = "(.*)"$/m.exec(manifest)[1]
}

// Where the action itself comes from; unknown if it is a directory of the workflow's own repository.
function address() {
  const { GITHUB_SERVER_URL: server, GITHUB_ACTION_REPOSITORY: repository } = process.env
  const name = input('version') || version()
  return input('url') || (repository ? `${server}/${repository}/releases/download/v${name.replace(/^v/, '')}` : '')
}

function setup(...step) {
  const settings = {
    // The blank lines in it are of meaning.
    MIRRORS: process.env.INPUT_MIRRORS || '',
    PROGRAM: input('program'),
    URL: input('program') ? '' : address(),
    SHA256: input('sha256'),
    STRICT: input('strict'),
    NODE: process.execPath,
  }
  const env = { ...process.env }
  for (const [name, value] of Object.entries(settings)) env[`APT_FULLBORE_${name}`] = value
  const script = path.join(__dirname, 'apt-setup.sh')
  const done = spawnSync('sh', [script, ...step], { stdio: ['ignore', 'inherit', 'inherit'], env, timeout: LIMIT_MS })
  if (done.status !== 0 && !settings.STRICT.match(/^(1|true|yes)$/)) {
    console.log(`::warning title=fullbore::apt-setup.sh ${step}: ${done.error || `exit code ${done.status}`}`)
    return 0
  }
  return done.status ?? 1
}

async function fetchFile(url, file) {
  const answer = await fetch(url)
  if (!answer.ok) throw new Error(`${url}: status ${answer.status}`)
  fs.writeFileSync(file, Buffer.from(await answer.arrayBuffer()))
}

if (process.argv[2] === 'fetch') {
  fetchFile(process.argv[3], process.argv[4]).catch((error) => {
    console.error(String(error.cause || error))
    process.exitCode = 1
  })
} else if (process.platform !== 'linux') {
  console.log('::warning title=fullbore::this runner has no apt')
} else if (process.env.STATE_enabled) {
  process.exitCode = setup('disable')
} else {
  // The runner hands this to the step after the job. It is written first: that step also undoes half an enable.
  fs.appendFileSync(process.env.GITHUB_STATE, 'enabled=1\n')
  process.exitCode = setup('enable')
}
